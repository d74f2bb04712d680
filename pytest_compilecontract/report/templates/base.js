"use strict";
// What the pages have in common. The data is read once; elements are made for what is looked at. Text from receipts is
// only ever set as text.
const shared = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const by = (id) => document.getElementById(id);
  // The worst first. Of a verdict that is not here nobody says that it is good.
  const VERDICTS = {
    broken: ["✕", "v-broken"], drifted: ["▼", "v-drifted"], violated: ["!", "v-violated"],
    "over its limits": ["!", "v-violated"], unstable: ["~", "v-unknown"], unverified: ["?", "v-unknown"],
    missing: ["–", "v-unknown"], unmeasured: ["○", "v-unknown"], new: ["+", "v-unknown"],
    waived: ["◑", "v-waived"], improved: ["▲", "v-improved"], held: ["✓", "v-held"], reference: ["·", "v-reference"],
  };
  const FINE = new Set(["held", "reference"]);

  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
    }
    for (const child of children.flat(Infinity)) if (child !== null && child !== undefined && child !== "") element.append(child);
    return element;
  }

  const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

  function splitName(contract) {
    const at = contract.indexOf("::");
    return at < 0 ? ["", contract] : [contract.slice(0, at), contract.slice(at + 2)];
  }

  // A long name may wrap where its parts end.
  function parted(name) {
    return name.split(/(?<=[_/.:,\[-])/).flatMap((part, at) => (at ? [document.createElement("wbr"), part] : [part]));
  }

  function verdictTag(verdict, tag = "span") {
    const [symbol, kind] = VERDICTS[verdict] || ["?", "v-unknown"];
    const loud = FINE.has(verdict) ? "" : " tag";
    return make(tag, { class: `verdict ${kind}${loud}` },
      make("span", { class: "symbol", "aria-hidden": "true" }, symbol), make("span", {}, verdict));
  }

  function section(title, ...children) {
    return make("section", {}, make("h3", {}, title), children);
  }

  function rerun(command) {
    const text = make("pre", {}, make("code", {}, command));
    const button = make("button", { type: "button" }, "Copy");
    button.addEventListener("click", async () => {
      let copied = true;
      try {
        await navigator.clipboard.writeText(command);
      } catch {
        const range = document.createRange();
        range.selectNodeContents(text);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        copied = document.execCommand("copy");
      }
      button.textContent = copied ? "Copied" : "Selected";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    return section("Rerun this lane alone", make("div", { class: "rerun" }, text, button));
  }

  // Colors

  const THEMES = ["system", "light", "dark"];
  function setTheme(name) {
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    by("theme-name").textContent = `Colors: ${name}`;
    try { localStorage.setItem("compilecontract-theme", name); } catch { /* not every place keeps something for a page */ }
  }
  let theme = "system";
  try { theme = localStorage.getItem("compilecontract-theme") || theme; } catch { /* as above */ }
  by("theme").addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    setTheme(theme);
  });

  setTheme(THEMES.includes(theme) ? theme : "system");
  return { data, by, make, counted, splitName, parted, VERDICTS, FINE, verdictTag, section, rerun };
})();
