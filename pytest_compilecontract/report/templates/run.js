// The page of a run. What is looked at is made from the data when it is looked at.
(() => {
  const { data, by, make, counted, splitName, parted, VERDICTS, verdictTag, section, rerun } = shared;
  const { lanes, marks, files, causes, troubles, modules, calls, laneSets, limitSets, laneWords, texts } = data;
  const CONTRACT = 0, LANE = 1, VERDICT = 2, REASON = 3, LIMITS = 4, VIOLATIONS = 5, COUNTS = 6, CALLS = 7, MODULES = 8, OPERATORS = 9, RERUN = 10, DOUBTS = 11, NOTES = 12, UNMEASURED = 13, EVIDENCE = 14;
  const KIND = 0, TITLE = 1, SAID = 2, FILE = 3, LINE = 4, FUNCTION = 5, SOURCE = 6, MOVED = 7, SEEN = 8, BROKE = 9;
  const NAME = 0, LINES = 1, PROBLEM = 2, FLAGS = 3, MARKS = 4, RAN = 5;
  const BLOCK = 100, BATCH = 100;
  const RANK = Object.keys(VERDICTS);
  const tags = new Map(data.kinds.map(([kind, tag]) => [kind, tag]));
  const nouns = new Map(data.kinds.map(([kind, , , one, many]) => [kind, [one, many]]));
  const weights = new Map(data.kinds.map(([kind, , weight]) => [kind, weight]));
  const fileOf = new Map(files.map((file, at) => [file[NAME], at]));

  const laneMeans = new Map(laneWords.map(([name, words]) => [texts[name], texts[words]]));
  const laneTitle = (names) => names.filter((name) => laneMeans.has(name)).map((name) => `lane ${name}: ${laneMeans.get(name)}`).join("\n") || null;

  const state = { view: "source", text: "", lane: "", only: "", file: -1, mark: -1, module: -1 };
  const shown = new Uint8Array(lanes.length);

  const button = (attributes, ...children) => make("button", { type: "button", ...attributes }, ...children);
  const dot = (kind) => make("span", { class: `dot k-${kind}`, "aria-hidden": "true" });
  const seenBy = (mark) => mark[SEEN].filter(([lane]) => shown[lane]);
  const isKind = (at) => !state.only || marks[at][KIND] === state.only;
  const isShown = (at) => isKind(at) && marks[at][SEEN].some(([lane]) => shown[lane]);
  const times = (mark) => Math.max(...seenBy(mark).map(([, count]) => count), 1);

  function seconds(value) {
    if (value >= 1) return `${Number(value.toPrecision(3))} s`;
    return value >= 1e-3 ? `${Number((value * 1e3).toPrecision(3))} ms` : `${Number((value * 1e6).toPrecision(3))} µs`;
  }

  // "test_model [capture, aot]", the first few of them.
  function lanesTold(numbers, most = 4) {
    const found = new Map();
    for (const at of numbers) {
      const name = splitName(texts[lanes[at][CONTRACT]])[1];
      found.set(name, [...(found.get(name) || []), texts[lanes[at][LANE]]]);
    }
    const told = [...found].slice(0, most).map(([name, of]) => `${name} [${[...new Set(of)].join(", ")}]`);
    if (found.size > most) told.push(`and ${counted(found.size - most, "contract")} more`);
    return told.join(", ");
  }

  // Whether every lane that saw it holds all the same.
  const isTolerated = (mark) => seenBy(mark).every(([lane]) => lanes[lane][VERDICT] === "held");

  // The first of a list, and a button that shows the others.
  function folded(list, most, noun, draw, tag = "li") {
    // A button for one is no shorter than the one.
    const cut = list.length > most + 1 ? most : list.length;
    const items = list.slice(0, cut).map(draw);
    if (cut === list.length) return items;
    const more = make(tag, {}, button({ class: "link rest" }, `and ${counted(list.length - cut, noun)} more`));
    more.firstChild.addEventListener("click", () => {
      const rest = list.slice(cut).map(draw);
      more.replaceWith(...rest);
      const next = rest[0].querySelector("a, button") || rest[0];
      if (next === rest[0]) next.tabIndex = -1;
      next.focus();
    });
    return [...items, more];
  }

  // What does not hold

  // "6 recompiles in aot, 2 in capture".
  function oftenTold(own, hit) {
    const counts = new Map(hit.map((lane) => [lane, 0]));
    for (const at of own) for (const [lane, count] of marks[at][SEEN]) if (counts.has(lane)) counts.set(lane, counts.get(lane) + count);
    const all = new Set(counts.values());
    if (all.size === 1) return `${counted([...all][0], "recompile")}${hit.length > 1 ? " in each lane" : ""}`;
    const found = new Map();
    for (const [lane, count] of counts) found.set(texts[lanes[lane][LANE]], [...(found.get(texts[lanes[lane][LANE]]) || []), count]);
    return [...found].map(([name, of], at) => {
      const low = Math.min(...of), high = Math.max(...of);
      const told = low === high ? (at ? high.toLocaleString("en") : counted(high, "recompile")) : `${low} to ${high}${at ? "" : " recompiles"}`;
      return `${told} in ${name}`;
    }).join(", ");
  }

  // Contracts by the lanes that they are hit in: "test_a, test_b [aot, capture]; test_c [aot]".
  function hitsTold(hit) {
    const lanesOf = new Map();
    for (const at of hit) lanesOf.set(lanes[at][CONTRACT], [...(lanesOf.get(lanes[at][CONTRACT]) || []), texts[lanes[at][LANE]]]);
    const groups = new Map();
    for (const [name, of] of lanesOf) groups.set(of.join(", "), [...(groups.get(of.join(", ")) || []), name]);
    return [...groups].map(([of, names], at) => [at ? "; " : "",
      folded(names, 6, "contract", (name, each) => make("span", { title: texts[name] }, `${each ? ", " : ""}${splitName(texts[name])[1]}`), "span"),
      make("span", { class: "muted", title: laneTitle(of.split(", ")) }, ` [${of}]`)]);
  }

  function causeItem({ cause: [title, own, follows, lanesHit], hit }) {
    const kind = marks[own[0]][KIND];
    const seen = new Set(hit);
    const inHit = (at) => marks[at][SEEN].some(([lane]) => seen.has(lane));
    const places = new Map();
    for (const at of own.filter(inHit)) {
      const where = marks[at][LINE] ? `${texts[marks[at][FILE]]}:${marks[at][LINE]}` : "unknown line";
      if (!places.has(where)) places.set(where, at);
    }
    const limits = new Set(lanesHit.filter(([lane]) => seen.has(lane)).flatMap(([, set]) => limitSets[set]));
    const after = follows.filter(inHit);
    const hint = marks[[...places.values()][0]][SAID].find(([label]) => label === "hint");
    return make("li", { class: `cause k-${kind}` },
      make("p", { class: "headline" }, make("span", { class: "kind" }, tags.get(kind)), make("span", { class: "title" }, texts[title], kind === "recompile" ? `: ${oftenTold(own, hit)}` : null)),
      make("ul", { class: "plain places" }, folded([...places], 4, "line", ([where, at]) => make("li", {},
        make("a", { class: "mono", href: `#mark=${at}` }, parted(where)), " ", make("code", {}, texts[marks[at][SOURCE]])))),
      hint ? make("p", { class: "hint" }, make("span", { class: "muted" }, "hint: "), texts[hint[1]]) : null,
      make("p", { class: "hits" }, make("span", { class: "of" }, make("span", { class: "muted" }, "in "), hitsTold(hit)),
        limits.size ? make("span", { class: "over" }, make("span", { class: "muted" }, "violated limits: "), [...limits].map((each) => texts[each]).join(", ")) : null),
      after.length ? make("details", { class: "follows" }, make("summary", {}, `as a result, more ran in eager: ${counted(after.length, "fact")}`), make("ul", { class: "plain" }, after.map(markLink))) : null);
  }

  const WIDEST = 20, OF_ONE = 20;
  let troublesOf = null;
  function drawTroubles() {
    const chosen = JSON.stringify([state.text, state.lane]);
    if (!troubles.length || chosen === troublesOf) return;
    troublesOf = chosen;
    by("troubles").hidden = false;
    const rows = causes.map((cause) => ({ cause, hit: cause[3].map(([lane]) => lane).filter((lane) => shown[lane]) })).filter(({ hit }) => hit.length);
    // What only one contract has is not hidden by what many have.
    const isOwn = ({ hit }) => new Set(hit.map((lane) => lanes[lane][CONTRACT])).size === 1;
    const first = new Set([...rows.slice(0, WIDEST), ...rows.slice(WIDEST).filter(isOwn).slice(0, OF_ONE)]);
    by("causes").replaceChildren(...folded([...first, ...rows.filter((each) => !first.has(each))], first.size, "cause", causeItem));
    const names = new Set(lanes.filter((_, at) => shown[at]).map((lane) => lane[CONTRACT]));
    const found = troubles.filter(([name, , said]) => names.has(name) && said.some(inLane));
    by("by-contract").replaceChildren(...folded(found, 30, "contract", troubleItem));
    const filtered = state.text || state.lane;
    const of = (some, all, noun) => (filtered ? `${some} of ${counted(all, noun)}` : counted(all, noun));
    by("troubles-title").replaceChildren("What does not hold", make("span", { class: "muted" },
      ` ${causes.length ? `${of(rows.length, causes.length, "cause")}, ` : ""}${of(found.length, troubles.length, "contract")}${filtered ? ", as filtered" : ""}`));
  }

  const inLane = ([of]) => !state.lane || texts[of].split(", ").includes(state.lane);
  function troubleItem([name, verdict, said]) {
    return make("li", { class: "trouble" }, verdictTag(verdict), button({ class: "link who", "data-contract-of": name }, parted(texts[name])),
      said.filter(inLane).map(([of, words]) => make("span", { class: "words" }, texts[words], make("span", { class: "muted", title: laneTitle(texts[of].split(", ")) }, ` in ${texts[of]}`))));
  }

  // Files

  // As `_weight` in run_view.py.
  function hurt(file) {
    let sum = 0;
    for (const at of file[MARKS]) {
      if (!isShown(at)) continue;
      const contracts = new Map();
      for (const [lane] of seenBy(marks[at])) {
        const name = lanes[lane][CONTRACT];
        contracts.set(name, Math.max(contracts.get(name) || 1, lanes[lane][VERDICT] === "held" ? 1 : data.notHeld));
      }
      sum += weights.get(marks[at][KIND]) * [...contracts.values()].reduce((a, b) => a + b, 0);
    }
    return sum;
  }

  function shareOf(file) {
    let compiled = 0, eager = 0;
    for (const [, ...groups] of file[RAN]) {
      for (const [c, e, set] of groups) {
        const count = laneSets[set].reduce((sum, lane) => sum + shown[lane], 0);
        compiled += c * count;
        eager += e * count;
      }
    }
    return [compiled, eager];
  }

  // Never all where one is not, and never none where one is.
  function percent(part, whole) {
    if (part === 0 || part === whole) return `${part ? 100 : 0} %`;
    return `${Math.min(99, Math.max(1, Math.round((100 * part) / whole)))} %`;
  }

  function shareBar(compiled, eager) {
    const bar = make("span", { class: compiled + eager ? "share" : "share none", "aria-hidden": "true" }, make("i"));
    bar.firstChild.style.width = compiled + eager ? `${(100 * compiled) / (compiled + eager)}%` : "0";
    return bar;
  }

  function shareTold(compiled, eager) {
    return compiled + eager ? `${percent(compiled, compiled + eager)} of operators compiled` : "";
  }

  let listed = [];
  function drawFiles() {
    listed = files.map((file, at) => ({ at, file, hurts: hurt(file), share: shareOf(file), facts: file[MARKS].filter(isShown) }))
      .filter(({ share, facts }) => facts.length || share[0] + share[1])
      .sort((a, b) => a.file[FLAGS][0] - b.file[FLAGS][0] || b.hurts - a.hurts || a.at - b.at);
    if (!listed.some(({ at }) => at === state.file)) state.file = listed.length ? listed[0].at : -1;
    let outside = false;
    by("files").replaceChildren(...listed.flatMap(({ at, file, share, facts }) => {
      const counts = new Map();
      for (const mark of facts) counts.set(marks[mark][KIND], (counts.get(marks[mark][KIND]) || 0) + 1);
      const name = texts[file[NAME]], cut = name.lastIndexOf("/") + 1;
      const item = make("li", {}, button({ "data-file": at, "aria-current": String(at === state.file) },
        cut ? make("span", { class: "path" }, parted(name.slice(0, cut))) : null, make("span", { class: "name" }, parted(name.slice(cut))),
        make("span", { class: "tallies" },
          [...tags.keys()].filter((kind) => counts.has(kind)).map((kind) => make("span", { class: `tally k-${kind}`, title: tags.get(kind) }, dot(kind), `${counts.get(kind)} ${nouns.get(kind)[Number(counts.get(kind) !== 1)]}`)),
          share[0] + share[1] ? [shareBar(...share), percent(share[0], share[0] + share[1])] : null)));
      if (!file[FLAGS][0] || outside) return [item];
      outside = true;
      return [make("li", { class: "group" }, "Outside the project's folder"), item];
    }));
  }

  // One file

  function note(at) {
    const mark = marks[at];
    const seen = seenBy(mark);
    const often = times(mark);
    const back = button({ class: "back", "data-back": at }, "↑ back to the list");
    const terms = mark[SAID].map(([label, text]) => [make("dt", {}, label), make("dd", {}, texts[text])]);
    if (mark[BROKE]) {
      const [file, line] = mark[BROKE];
      const target = marks.findIndex((each) => each[KIND] === "break" && each[FILE] === file && each[LINE] === line);
      terms.push([make("dt", {}, "because of"), make("dd", {}, target < 0 ? `the graph break at ${texts[file]}:${line}` : button({ class: "link", "data-mark": target }, `the graph break at ${texts[file]}:${line}`))]);
    }
    terms.push([make("dt", {}, "in"), make("dd", {}, lanesTold(seen.map(([lane]) => lane)))]);
    return make("div", { class: `note k-${mark[KIND]}`, id: `mark-${at}`, tabindex: "-1" },
      make("div", { class: "headline" }, make("span", { class: "kind" }, tags.get(mark[KIND])),
        make("span", { class: "title" }, texts[mark[TITLE]]), often > 1 ? make("span", { class: "muted" }, `${often} times in a lane`) : null,
        isTolerated(mark) ? make("span", { class: "muted" }, "tolerated") : null, back),
      make("dl", {}, terms));
  }

  function operatorsOf(ran) {
    const told = [];
    let compiled = 0, eager = 0;
    for (const [c, e, set] of ran) {
      const of = laneSets[set].filter((lane) => shown[lane]);
      if (!of.length) continue;
      compiled = Math.max(compiled, c);
      eager = Math.max(eager, e);
      told.push(`${[c ? `${c} compiled` : "", e ? `${e} eager` : ""].filter(Boolean).join(", ")} in ${lanesTold(of)}`);
    }
    return { compiled, eager, told: told.join("\n") };
  }

  function row(number, text, ran, marked, broke) {
    const found = ran ? operatorsOf(ran) : { compiled: 0, eager: 0, told: "" };
    const ranAs = found.eager ? (found.compiled ? "both" : "slow") : found.compiled ? "ran" : "";
    // Whatever ran there: this is where the graph ends.
    const kind = broke ? "broke" : ranAs;
    return make("div", { class: `row ${kind}${marked ? " marked" : ""}`, "data-line": number },
      make("span", {}, String(number)),
      make("span", { class: "ops", title: found.told },
        found.compiled ? make("span", { class: "c" }, String(found.compiled)) : null,
        found.compiled && found.eager ? "+" : null,
        found.eager ? make("span", { class: "e" }, String(found.eager)) : null,
        kind ? make("span", { class: "hidden" }, [broke ? " breaks the graph" : "", { ran: " ran compiled", slow: " ran in eager", both: " ran compiled and eager" }[ranAs]].filter(Boolean).join(",")) : null),
      make("span", { class: "text" }, text));
  }

  function notices(file, facts) {
    const [outside, changed, after] = file[FLAGS];
    const found = [];
    if (texts[file[PROBLEM]]) {
      const packaged = outside ? " (an installed package has its files elsewhere)" : "";
      found.push(`The source is not shown: ${texts[file[PROBLEM]]}${packaged}. The lines below are those in the receipt.`);
    }
    if (changed) found.push("This file has changed since the run: changed lines are listed separately, and which lines ran compiled is not shown.");
    if (after) found.push("This file was written after the run. The lines in the receipt are unchanged, but others may differ.");
    if (!facts.length && !texts[file[PROBLEM]] && !state.only) found.push("No graph break, recompile or eager frame here.");
    return found.map((text, at) => make("p", { class: at === found.length - 1 && !facts.length && !changed && !after ? "muted" : "notice" }, text));
  }

  function factList(facts) {
    if (!facts.length) return null;
    return make("details", { class: "list", id: "facts", open: facts.length <= 40 },
      make("summary", {}, counted(facts.length, "fact"), " in this file"),
      make("ol", { class: "plain" }, facts.map((at) => make("li", {}, button({ "data-mark": at, id: `fact-${at}` },
        make("span", { class: "line" }, marks[at][LINE] ? String(marks[at][LINE]) : "–"), make("span", { class: `kind k-${marks[at][KIND]}` }, tags.get(marks[at][KIND])),
        make("span", { class: "title", title: texts[marks[at][TITLE]] }, texts[marks[at][TITLE]]),
        make("span", { class: "lanes" }, lanesTold(seenBy(marks[at]).map(([lane]) => lane), 1)))))));
  }

  function drawFile() {
    const holder = by("file");
    const file = files[state.file];
    if (!file) return holder.replaceChildren(make("p", { class: "empty" }, files.length ? "No source lines for the lanes shown." : "No source line is known for any lane."));
    const facts = file[MARKS].filter(isShown);
    const share = shareOf(file);
    const gone = facts.filter((at) => marks[at][MOVED]);
    const beside = new Map();
    for (const at of facts) if (!marks[at][MOVED]) beside.set(marks[at][LINE], [...(beside.get(marks[at][LINE]) || []), at]);
    const ran = new Map(file[RAN].map(([line, ...groups]) => [line, groups]));
    // Also where the kinds that are shown leave it out.
    const broke = new Set(file[MARKS].map((at) => marks[at]).filter((mark) => mark[KIND] === "break" && !mark[MOVED] && seenBy(mark).length).map((mark) => mark[LINE]));
    const rows = [];
    if (file[LINES]) file[LINES].forEach((text, at) => rows.push([at + 1, text]));
    else {
      const known = new Map([...ran.keys()].map((line) => [line, ""]));
      for (const at of facts) known.set(marks[at][LINE], texts[marks[at][SOURCE]]);
      rows.push(...[...known].sort((a, b) => a[0] - b[0]));
    }
    const blocks = [];
    for (let at = 0; at < rows.length; at += BLOCK) {
      const part = rows.slice(at, at + BLOCK);
      const block = make("div", { class: "block" }, part.map(([line, text]) => [row(line, text, ran.get(line), beside.has(line), broke.has(line)), (beside.get(line) || []).map(note)]));
      block.style.setProperty("--tall", `${part.length * 1.4}rem`);
      blocks.push(block);
    }
    holder.replaceChildren(
      make("header", {}, make("h2", {}, parted(texts[file[NAME]])), make("span", { class: "muted" }, shareTold(...share))),
      ...notices(file, facts),
      factList(facts) || "",
      gone.length ? make("div", { class: "was" }, gone.map((at) => [
        make("p", { class: "muted" }, `line ${marks[at][LINE]} was: `, make("code", {}, texts[marks[at][SOURCE]] || "(not known)")), note(at)])) : "",
      make("p", { class: "legend" },
        make("span", {}, make("i", { class: "swatch ran" }), "ran compiled"), make("span", {}, make("i", { class: "swatch both" }), "both"), make("span", {}, make("i", { class: "swatch slow" }), "ran in eager"), make("span", {}, make("i", { class: "swatch broke" }), "breaks the graph"),
        make("span", {}, "numbers: operators in one extra call in which nothing was compiled, the maximum over the lanes shown")),
      make("div", { class: "code" }, blocks));
  }

  function goTo(at) {
    if (!marks[at]) return;
    if (!isShown(at)) clear();
    const name = marks[at][FILE];
    if (!marks[at][LINE] || !fileOf.has(name)) return show("contracts");
    state.file = fileOf.get(name);
    state.mark = at;
    show("source");
    reveal(`mark-${at}`);
  }

  // A fact with the line that it is about above it, and the whole of what is said of it, as far as there is room.
  function scrollTo(note) {
    let row = note.previousElementSibling;
    while (row && !row.matches(".row")) row = row.previousElementSibling;
    const top = row ? row.getBoundingClientRect().top : 0;
    const from = row && note.getBoundingClientRect().top - top < innerHeight / 2 ? row : note;
    from.scrollIntoView({ block: "start" });
  }

  function reveal(id) {
    const found = by(id);
    if (!found) return;
    document.querySelectorAll(".here").forEach((each) => each.classList.remove("here"));
    found.classList.add("here");
    if (found.matches(".code .note")) {
      scrollTo(found);
      // What is above is drawn only now, and may be taller than was thought.
      requestAnimationFrame(() => scrollTo(found));
    } else found.scrollIntoView({ block: "center" });
    found.focus({ preventScroll: true });
  }

  // Contracts and calls

  function runs(found) {
    // Steady calls that follow one another and ran as many graphs, together.
    const told = [];
    found.forEach(([phase, took, graphs], at) => {
      const last = told[told.length - 1];
      if (phase === "steady" && last && last.phase === "steady" && last.graphs === graphs) {
        last.to = at;
        last.low = Math.min(last.low, took);
        last.high = Math.max(last.high, took);
      } else told.push({ phase, graphs, from: at, to: at, low: took, high: took });
    });
    return told;
  }

  function timeline(lane) {
    if (lane[CALLS] < 0) return null;
    const [found, left, compiling] = calls[lane[CALLS]];
    const longest = Math.max(...found.map(([, took]) => took), 1e-9);
    const cells = runs(found).flatMap((each) => {
      const compiles = each.phase !== "steady";
      const track = make("span", { class: compiles ? "track compiles" : "track", "aria-hidden": "true" }, make("i"));
      track.firstChild.style.width = `${(100 * each.high) / longest}%`;
      const several = each.to > each.from;
      const took = several && each.low !== each.high ? `${seconds(each.low)} to ${seconds(each.high)}` : seconds(each.high);
      const meaning = { cold: "cold", "warm-up": "warm-up, compiled again", steady: "steady" }[each.phase] || each.phase;
      return [
        make("span", { class: "number" }, several ? `calls ${each.from}–${each.to}` : `call ${each.from}`),
        make("span", { class: compiles ? "phase compiles" : "phase" }, meaning), track, make("span", { class: "took" }, took),
        make("span", { class: "graphs" }, each.graphs < 0 ? "graphs not known" : `${counted(each.graphs, "graph")} ran${several ? " in each" : ""}`)];
    });
    return make("div", {}, make("h4", {}, `Calls${left ? `, the first ${found.length} of ${found.length + left}` : ""}: seconds to scale`), make("div", { class: "calls" }, cells),
      texts[compiling] ? make("p", { class: "muted" }, texts[compiling]) : null);
  }

  const marksByLane = new Map();
  marks.forEach((mark, at) => mark[SEEN].forEach(([lane]) => marksByLane.set(lane, [...(marksByLane.get(lane) || []), at])));

  function markLink(at) {
    const mark = marks[at];
    const where = mark[LINE] ? button({ class: "link mono", "data-mark": at }, `${texts[mark[FILE]]}:${mark[LINE]}`) : make("span", { class: "muted" }, "unknown line");
    return make("li", {}, where, " ", make("span", { class: `kind k-${mark[KIND]}` }, tags.get(mark[KIND])), " ", texts[mark[TITLE]]);
  }

  // "3 graph breaks, 1 recompile", the kinds in their order.
  function kindsTold(found) {
    const counts = new Map();
    for (const at of found) counts.set(marks[at][KIND], (counts.get(marks[at][KIND]) || 0) + 1);
    return [...tags.keys()].filter((kind) => counts.has(kind)).map((kind) => `${counts.get(kind).toLocaleString("en")} ${nouns.get(kind)[Number(counts.get(kind) !== 1)]}`).join(", ");
  }

  function laneBlock(at) {
    const lane = lanes[at];
    const all = marksByLane.get(at) || [];
    const facts = all.filter(isKind);
    const numbers = lane[COUNTS].map(([one, many, count]) => `${count.toLocaleString("en")} ${texts[count === 1 ? one : many]}`).join(" · ");
    const again = facts.filter((each) => marks[each][KIND] === "recompile");
    const others = facts.filter((each) => marks[each][KIND] !== "recompile");
    return make("div", { class: "lane-block" },
      make("h3", {}, verdictTag(lane[VERDICT]), make("span", { title: laneTitle([texts[lane[LANE]]]) }, texts[lane[LANE]]), make("span", { class: "muted" }, texts[lane[LIMITS]])),
      numbers ? make("p", { class: "muted" }, numbers) : null,
      texts[lane[REASON]] && !lane[VIOLATIONS].length ? make("p", { class: "reason" }, texts[lane[REASON]]) : null,
      lane[VIOLATIONS].map(([limit, measured, details]) => make("div", {}, make("p", {}, make("b", {}, texts[limit]), `: measured ${texts[measured]}`),
        details.length ? make("details", {}, make("summary", { class: "muted" }, "as pytest prints it"), make("pre", { class: "details" }, details.map((each) => texts[each]).join("\n"))) : null)),
      lane[DOUBTS].length ? make("div", {}, make("h4", {}, "Not certain"), make("ul", { class: "plain" }, lane[DOUBTS].map((each) => make("li", {}, texts[each])))) : null,
      lane[NOTES].map((each) => make("p", {}, texts[each])),
      timeline(lane),
      again.length ? make("div", {}, make("h4", {}, "Recompiled in these calls, because of this guard"), make("ul", { class: "plain marks-of" }, again.map(markLink))) : null,
      others.length ? make("div", {}, make("h4", {}, "On these lines"), make("ul", { class: "plain marks-of" }, others.map(markLink))) : null,
      all.length > facts.length ? make("p", { class: "muted filtered" }, `Filtered out: ${kindsTold(all.filter((each) => !isKind(each)))}.`) : null,
      lane[MODULES] >= 0 ? make("p", {}, button({ class: "link", "data-module": at }, `Modules: ${shareTold(...lane[OPERATORS])}`)) : null,
      lane[UNMEASURED].length ? make("details", {}, make("summary", { class: "muted" }, "not measured, and why"),
        make("ul", { class: "plain" }, lane[UNMEASURED].map(([names, reason]) => make("li", {}, make("span", { class: "muted" }, `${texts[names]}: `), texts[reason])))) : null,
      lane[EVIDENCE] ? evidence(lane[EVIDENCE]) : null,
      texts[lane[RERUN]] ? rerun(texts[lane[RERUN]]) : null);
  }

  function evidence([folder, came, left, lacks]) {
    const link = (name, path) => make("a", { href: path, target: "_blank", rel: "noreferrer" }, name);
    return make("details", { class: "evidence" },
      make("summary", {}, "Evidence", make("span", { class: "muted" }, ` of one more run: ${texts[came]}`)),
      make("p", {}, link("the folder", `${folder}/`), ", ", link("what is in it", `${folder}/README.md`)),
      make("ul", { class: "plain" }, left.map(([name, what, path]) => make("li", {}, link(texts[name], `${folder}/${path}`), make("span", { class: "muted" }, ` ${texts[what]}`)))),
      lacks.length ? make("p", { class: "muted" }, `Left out: ${lacks.map((each) => texts[each]).join("; ")}`) : null);
  }

  function worst(numbers) {
    return numbers.map((at) => lanes[at][VERDICT]).sort((a, b) => RANK.indexOf(a) - RANK.indexOf(b))[0];
  }

  let groups = [];
  let drawn = 0;
  function contractItem([name, numbers]) {
    const [path, test] = splitName(texts[name]);
    const own = numbers.map((at) => texts[lanes[at][LANE]]).join(", ");
    const item = make("details", { class: "contract", "data-contract": name },
      make("summary", {}, verdictTag(worst(numbers)), make("span", { class: "name" }, parted(test)), path ? make("span", { class: "path" }, path) : null, make("span", { class: "muted" }, own)));
    item.addEventListener("toggle", () => { if (item.open && item.children.length === 1) item.append(...numbers.map(laneBlock)); });
    return item;
  }

  function goToContract(name) {
    show("contracts");
    if (!by("contracts").querySelector(`[data-contract="${name}"]`)) moreContracts(Infinity);
    const found = by("contracts").querySelector(`[data-contract="${name}"]`);
    if (!found) return;
    // Its lanes are drawn once it is open, and the page is tall enough only then.
    found.addEventListener("toggle", () => found.scrollIntoView({ block: "start" }), { once: true });
    if (found.open) found.scrollIntoView({ block: "start" });
    found.open = true;
    found.firstChild.focus({ preventScroll: true });
  }

  // What the lanes are that are shown, where they are few enough to be read.
  function laneLegend() {
    const names = [...new Set(lanes.filter((_, at) => shown[at]).map((lane) => texts[lane[LANE]]))].filter((name) => laneMeans.has(name));
    if (!names.length || names.length > 8) return null;
    return make("p", { class: "legend" }, make("span", {}, "A lane is one exact way to compile and run a contract:"), names.map((name) => make("span", {}, make("b", {}, name), laneMeans.get(name))));
  }

  function drawContracts() {
    const found = new Map();
    lanes.forEach((lane, at) => { if (shown[at]) found.set(lane[CONTRACT], [...(found.get(lane[CONTRACT]) || []), at]); });
    groups = [...found].sort((a, b) => RANK.indexOf(worst(a[1])) - RANK.indexOf(worst(b[1])));
    drawn = 0;
    by("contracts").replaceChildren(laneLegend() || "");
    moreContracts(BATCH);
    if (groups.length && groups.length <= 3) by("contracts").querySelectorAll(".contract").forEach((each) => { each.open = true; });
    if (!groups.length) by("contracts").append(make("p", { class: "empty" }, lanes.length ? "No contract matches the filter." : "No contract was measured."));
  }

  function moreContracts(count) {
    const holder = by("contracts");
    holder.querySelector("#more")?.remove();
    holder.append(...groups.slice(drawn, drawn + count).map(contractItem));
    drawn = Math.min(drawn + count, groups.length);
    if (drawn < groups.length) holder.append(button({ class: "quiet more", id: "more" }, `Show more of ${counted(groups.length, "contract")}`));
  }

  // Modules

  function drawModules() {
    const holder = by("modules");
    const able = lanes.map((_, at) => at).filter((at) => shown[at] && lanes[at][MODULES] >= 0);
    if (!able.length) {
      return holder.replaceChildren(make("p", { class: "empty" }, "The operators by module are unknown. torch's profiler records them, if possible, in one extra call of a module in which nothing is compiled."));
    }
    // The one that lost most, unless another was chosen.
    if (!able.includes(state.module)) state.module = able.reduce((a, b) => (lanes[b][OPERATORS][1] > lanes[a][OPERATORS][1] ? b : a));
    const select = make("select", { id: "module-lane", "aria-label": "Contract and lane" }, able.map((at) => make("option", { value: at, selected: at === state.module },
      `${splitName(texts[lanes[at][CONTRACT]])[1]} [${texts[lanes[at][LANE]]}]: ${shareTold(...lanes[at][OPERATORS])}`)));
    select.addEventListener("change", () => { state.module = Number(select.value); drawModules(); remember(); by("module-lane").focus(); });
    const only = make("input", { type: "checkbox", id: "only" });
    const rows = modules[lanes[state.module][MODULES]].map(([path, depth, compiled, eager]) => {
      const name = texts[path];
      const leaf = make("div", { class: eager ? "leaf slow" : "leaf", title: name }, make("span", { class: "name" }, depth ? name.slice(name.lastIndexOf(".") + 1) : "the whole target"),
        shareBar(compiled, eager), make("span", { class: "told" }, eager ? `${compiled} compiled, ${eager} eager` : `${compiled} compiled`));
      leaf.firstChild.style.paddingLeft = `${Math.min(depth, 12) * 1.1}rem`;
      return leaf;
    });
    only.addEventListener("change", () => rows.forEach((each) => { each.hidden = only.checked && !each.classList.contains("slow"); }));
    holder.replaceChildren(
      make("div", { class: "pick" }, select, make("label", { class: "switch" }, only, "only modules with eager operators")),
      make("p", { class: "muted" }, "Operators in one extra call, made after the counted ones, in which nothing is compiled. Each module includes its submodules."),
      make("div", { class: "tree" }, rows));
  }

  // All of it

  const DRAW = { source: () => { drawFiles(); drawFile(); }, contracts: drawContracts, modules: drawModules, environment: () => {} };

  const LISTS_KINDS = new Set(["source", "contracts"]);

  function select() {
    const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    lanes.forEach((lane, at) => {
      const name = texts[lane[CONTRACT]].toLowerCase();
      shown[at] = Number((!state.lane || texts[lane[LANE]] === state.lane) && words.every((word) => name.includes(word)));
      found += shown[at];
    });
    return found;
  }

  function refresh() {
    const found = select();
    document.querySelectorAll("#views button").forEach((each) => each.setAttribute("aria-current", String(each.dataset.view === state.view)));
    for (const view of Object.keys(DRAW)) by(view).hidden = view !== state.view;
    by("filters").hidden = state.view === "environment";
    by("kinds").hidden = !LISTS_KINDS.has(state.view);
    drawTroubles();
    DRAW[state.view]();
    const filtered = state.text || state.lane || state.only;
    const of = state.text || state.lane ? ` of ${lanes.length.toLocaleString("en")}` : "";
    const where = state.view === "source" ? `, ${counted(listed.length, "file")}` : "";
    const left = state.only && LISTS_KINDS.has(state.view) ? kindsTold(marks.map((_, at) => at).filter((at) => !isKind(at) && seenBy(marks[at]).length)) : "";
    const only = left ? `; only ${nouns.get(state.only)[1]}, filtered out: ${left}` : "";
    by("status").textContent = state.view === "environment" ? "" : `${counted(found, "lane")}${of} shown${where}${only}`;
    drawKinds();
    by("status").classList.toggle("notice", Boolean(left));
    by("status").dataset.text = state.text;
    by("clear").hidden = !filtered;
    document.documentElement.style.setProperty("--bar", `${by("bar").offsetHeight + 8}px`);
    remember();
  }

  function show(view) {
    state.view = DRAW[view] ? view : "source";
    refresh();
  }

  function clear() {
    state.text = state.lane = state.only = "";
    by("text").value = by("lane").value = "";
    select();
  }

  // How many facts of each kind there are in the lanes that are shown; one that is chosen is the only one that is listed.
  function drawKinds() {
    const counts = new Map();
    let all = 0;
    for (const mark of marks) {
      const seen = mark[SEEN].some(([lane]) => shown[lane]);
      counts.set(mark[KIND], (counts.get(mark[KIND]) || 0) + seen);
      all += seen;
    }
    const chip = (kind, mark, tag, count) => button({ class: `chip k-${kind || "all"}`, "data-kind": kind, "aria-pressed": String(state.only === kind), title: kind ? `only this kind: ${nouns.get(kind)[1]}` : "facts of every kind" },
      mark, make("span", {}, tag), make("span", { class: "count" }, count.toLocaleString("en")));
    const focused = document.activeElement.closest?.("#kinds button")?.dataset.kind;
    by("kinds").replaceChildren(...(counts.size > 1 ? [chip("", null, "all", all)] : []), ...[...tags].filter(([kind]) => counts.has(kind)).map(([kind, tag]) => chip(kind, dot(kind), tag, counts.get(kind))));
    if (focused !== undefined) by("kinds").querySelector(`[data-kind="${focused}"]`)?.focus();
  }

  function remember() {
    const said = new URLSearchParams();
    if (state.view !== "source") said.set("view", state.view);
    if (state.view === "source" && files[state.file] && state.mark < 0) said.set("file", texts[files[state.file][NAME]]);
    if (state.view === "source" && state.mark >= 0) said.set("mark", state.mark);
    if (state.view === "modules" && state.module >= 0) said.set("module", state.module);
    if (state.text) said.set("text", state.text);
    if (state.lane) said.set("lane", state.lane);
    if (state.only) said.set("kind", state.only);
    try {
      history.replaceState(null, "", `#${said}`);
    } catch {
      // Some places that show a page from a file let it have no address of its own.
    }
  }

  function recall() {
    const said = new URLSearchParams(location.hash.slice(1));
    state.text = by("text").value = said.get("text") || "";
    state.lane = by("lane").value = said.get("lane") || "";
    state.only = tags.has(said.get("kind")) ? said.get("kind") : "";
    state.module = said.has("module") ? Number(said.get("module")) : state.module;
    select();
    const file = files.findIndex((each) => texts[each[NAME]] === said.get("file"));
    if (file >= 0) state.file = file;
    state.mark = -1;
    if (said.has("mark") && marks[Number(said.get("mark"))]) goTo(Number(said.get("mark")));
    else show(said.get("view") || "source");
  }

  by("lane").append(...[...new Set(lanes.map((lane) => texts[lane[LANE]]))].sort().map((name) => make("option", { value: name, title: laneTitle([name]) }, name)));
  by("lane").addEventListener("change", (event) => { state.lane = event.target.value; refresh(); });
  let typing = 0;
  by("text").addEventListener("input", (event) => {
    clearTimeout(typing);
    typing = setTimeout(() => { state.text = event.target.value.trim(); refresh(); }, 80);
  });
  by("filters").addEventListener("submit", (event) => event.preventDefault());
  by("clear").addEventListener("click", () => { clear(); refresh(); by("text").focus(); });
  by("views").addEventListener("click", (event) => { if (event.target.dataset.view) { state.mark = -1; show(event.target.dataset.view); } });
  by("kinds").addEventListener("click", (event) => {
    const kind = event.target.closest("button")?.dataset.kind;
    if (kind === undefined) return;
    state.only = state.only === kind ? "" : kind;
    refresh();
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      // The same one again leads there again: the address alone would not change.
      event.preventDefault();
      const said = new URLSearchParams(link.hash.slice(1));
      if (said.has("mark")) return goTo(Number(said.get("mark")));
      show(said.get("view"));
      return by("bar").scrollIntoView();
    }
    const chosen = event.target.closest("[data-file], [data-mark], [data-back], [data-module], [data-contract-of], #more");
    if (!chosen) return;
    const { file, mark, back, module, contractOf } = chosen.dataset;
    if (chosen.id === "more") moreContracts(BATCH);
    else if (file !== undefined) {
      state.file = Number(file);
      state.mark = -1;
      refresh();
      const { top } = by("file").getBoundingClientRect();
      if (top < 0 || top > innerHeight - 120) by("file").scrollIntoView({ block: "start" });
      by("files").querySelector(`[data-file="${file}"]`)?.focus({ preventScroll: true });
    } else if (mark !== undefined) goTo(Number(mark));
    else if (back !== undefined) {
      by("facts").open = true;
      reveal(`fact-${back}`);
    } else if (contractOf !== undefined) goToContract(contractOf);
    else if (module !== undefined) {
      state.module = Number(module);
      show("modules");
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.closest("input, select")) {
      event.preventDefault();
      by("text").focus();
    }
  });
  window.addEventListener("hashchange", recall);
  window.addEventListener("beforeprint", () => {
    moreContracts(Infinity);
    if (groups.length <= 50) by("contracts").querySelectorAll(".contract").forEach((each) => { each.open = true; });
  });

  recall();
})();
