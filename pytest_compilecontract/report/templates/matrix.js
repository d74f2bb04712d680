// The matrix's page. The data is read once; elements are made for what is looked at. Text from receipts is only ever set
// as text.
(() => {
  const { data, by, make, counted, splitName, parted, VERDICTS, FINE, verdictTag, section, rerun } = shared;
  const { rows, columns, texts } = data;
  const BATCH = 150;
  const LISTS = ["Validated default", "Workaround (waived)", "Still-open risk"];
  const ORDER = Object.keys(VERDICTS);
  const VERDICT = 0, FACT = 1, REASON = 2, OWN = 3, MEASURED = 4, TOOK = 5, CHANGES = 6, ATTRIBUTION = 7, RERUN = 8, TREND = 9, DIFFS = 10;
  const SECONDS = data.trended.length - 1;
  const STRIPS = 24;

  const state = { view: "verdicts", metric: 1, changed: false, text: "", lane: "", verdicts: new Set(), columns: new Set(columns.keys()), unfolded: false };
  let matching = [];
  let drawn = 0;
  let listed = 0;
  let lastContract = -1;

  const grid = by("matrix");
  const head = grid.tHead;
  const body = grid.tBodies[0];
  const dialog = by("detail");

  const columnName = (at) => texts[columns[at].name];
  const shownColumns = () => [...columns.keys()].filter((at) => state.columns.has(at));

  // Filters

  const haystacks = new Array(rows.length);
  function haystack(at) {
    if (haystacks[at] === undefined) {
      const [contract, lane, cells] = rows[at];
      const facts = cells.map((cell) => (cell ? `${cell[VERDICT]} ${texts[cell[FACT]]}` : ""));
      haystacks[at] = `${texts[contract]}\n${texts[lane]}\n${facts.join("\n")}`.toLowerCase();
    }
    return haystacks[at];
  }

  function select() {
    const shown = shownColumns();
    const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [], fine = [];
    for (let at = 0; at < rows.length; at++) {
      const [, lane, cells] = rows[at];
      if (state.lane && texts[lane] !== state.lane) continue;
      if (words.length && !words.every((word) => haystack(at).includes(word))) continue;
      if (state.verdicts.size && !shown.some((each) => cells[each] && state.verdicts.has(cells[each][VERDICT]))) continue;
      (shown.every((each) => cells[each] && FINE.has(cells[each][VERDICT])) ? fine : found).push(at);
    }
    const asked = words.length || state.verdicts.size;
    const open = state.unfolded || [...state.verdicts].some((each) => FINE.has(each)) || (asked && !found.length);
    // In the order of the data, whatever was folded.
    return { rows: open ? [...found, ...fine].sort((a, b) => a - b) : found, fine: fine.length, open, found: found.length };
  }

  // The table

  function drawHead() {
    const cells = shownColumns().map((at) => {
      const counts = columns[at].verdicts;
      const told = ORDER.filter((each) => counts[each]).map((each) => `${counts[each].toLocaleString("en")} ${each}`);
      const others = Object.keys(counts).filter((each) => !VERDICTS[each]).map((each) => `${counts[each]} ${each}`);
      return make("th", { scope: "col" }, columnName(at), make("span", { class: "count" }, [...told, ...others].join(" · ")));
    });
    grid.style.setProperty("--columns", cells.length);
    head.replaceChildren(make("tr", {}, make("th", { scope: "col" }, "Lane"), cells));
  }

  function setupRow(name) {
    const cells = shownColumns().map((at) => {
      const said = texts[columns[at][name]];
      const good = said === "yes", open = said === "not known" || said === "not tried";
      return make("td", { class: good || open ? "" : "bad", "data-column": columnName(at) },
        make("span", {}, `${good ? "✓" : open ? "?" : "✕"} ${said}`));
    });
    return make("tr", { class: "setup" }, make("th", { scope: "row" }, name), cells);
  }

  function cellOf(at, column) {
    const cell = rows[at][2][column];
    if (!cell) return make("td", { "data-column": columnName(column) }, make("span", { class: "none" }, "not in the run"));
    const fact = texts[cell[FACT]].split("\n")[0];
    return make("td", { "data-column": columnName(column) },
      make("button", { type: "button", class: "cell", tabindex: "-1", "data-row": at, "data-column": column, "aria-haspopup": "dialog" },
        verdictTag(cell[VERDICT]), fact ? make("span", { class: "fact" }, fact.slice(0, 300)) : null));
  }

  function laneHeader(contract, lane, first) {
    const [path, name] = splitName(texts[contract]);
    return make("th", { scope: "row" },
      make("span", { class: first ? "contract" : "contract hidden", title: texts[contract] },
        path ? make("span", { class: "path" }, parted(path)) : null, make("span", { class: "name" }, parted(name))),
      make("span", { class: "lane" }, texts[lane]));
  }

  function draw(upTo) {
    const shown = shownColumns();
    const fragment = document.createDocumentFragment();
    for (; drawn < Math.min(upTo, matching.rows.length); drawn++) {
      const at = matching.rows[drawn];
      const [contract, lane] = rows[at];
      const first = contract !== lastContract;
      lastContract = contract;
      fragment.append(make("tr", { class: first ? "lane-row first" : "lane-row" },
        laneHeader(contract, lane, first), shown.map((column) => cellOf(at, column))));
    }
    body.querySelectorAll("tr.wide").forEach((row) => row.remove());
    body.append(fragment);
    drawEnd(shown.length + 1);
    if (!body.querySelector(".cell[tabindex='0']")) body.querySelector(".cell")?.setAttribute("tabindex", "0");
  }

  function drawEnd(width) {
    const wide = (...children) => body.append(make("tr", { class: "wide" }, make("td", { colspan: width }, children)));
    const left = matching.rows.length - drawn;
    if (left > 0) {
      const button = make("button", { type: "button", class: "quiet", id: "more" }, `Show ${counted(Math.min(left, BATCH), "lane")} more of ${left.toLocaleString("en")}`);
      wide(button);
      watcher.observe(button);
    }
    if (!matching.rows.length && !matching.fine) wide(make("span", { class: "muted" }, rows.length ? "No lane matches the filter." : "No lane was measured."));
    if (matching.fine && (!matching.open || state.unfolded)) {
      const told = matching.open ? "Fold" : "Show";
      wide(make("button", { type: "button", class: "quiet", id: "fold", "aria-expanded": String(matching.open) },
        `${told} ${counted(matching.fine, "lane")} that held everywhere`));
    }
  }

  // Over releases: a map of all lanes by one measure, and a strip of all measures for each.

  const valueOf = (at, column, metric) => {
    const cell = rows[at][2][column];
    return cell && cell[TREND] >= 0 ? data.trends[cell[TREND]][metric] : null;
  };
  const spreadOf = (at, column) => {
    const cell = rows[at][2][column];
    return cell && cell[TREND] >= 0 ? data.trends[cell[TREND]].slice(SECONDS + 1) : [];
  };

  function figure(value, metric) {
    if (value === null) return "–";
    if (metric !== SECONDS) return value.toLocaleString("en");
    return value >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
  }

  // Whether a value is another than that of the last environment that has one. Seconds move by themselves: a quarter.
  function differs(value, before, metric) {
    if (value === null || before === null) return false;
    return metric === SECONDS ? Math.abs(value - before) > 0.25 * Math.max(value, before) : value !== before;
  }

  function stepsOf(at, shown, metric) {
    let before = null;
    return shown.map((column) => {
      const value = valueOf(at, column, metric);
      const step = { column, value, moved: differs(value, before, metric) ? Math.sign(value - before) : 0 };
      if (value !== null) before = value;
      return step;
    });
  }

  const moves = (at, shown, metric) => stepsOf(at, shown, metric).some((each) => each.moved);
  let mapped = [], mappedDrawn = 0, stripsDrawn = 0, largest = 0, heatPath = "";

  function drawReleases() {
    const shown = shownColumns();
    const { rows: kept, fine } = select();
    // What held everywhere is here too: a count that nobody judges may have moved.
    const whole = kept.length < rows.length && fine ? selectAll() : kept;
    mapped = whole.filter((at) => !state.changed || moves(at, shown, state.metric));
    largest = Math.max(0, ...mapped.flatMap((at) => shown.map((column) => valueOf(at, column, state.metric) || 0)));
    const [, label] = data.trended[state.metric];
    const sums = texts[data.cold[0]] && state.metric === SECONDS ? `; in all ${columns.map((_, at) => texts[data.cold[at]]).filter(Boolean).join(", ")}` : "";
    by("legend").textContent = `${label}: from 0 to ${figure(largest, state.metric)}, a stronger color means more${state.metric === SECONDS ? "; not judged" : ""}. ▲ more, ▼ fewer than before${state.metric === SECONDS ? " by more than a quarter" : ""}${sums}`;
    by("heat").tHead.replaceChildren(make("tr", {}, make("th", { scope: "col" }, "Lane"), shown.map((at) => make("th", { scope: "col" }, columnName(at)))));
    by("heat").tBodies[0].replaceChildren();
    by("strips").replaceChildren();
    mappedDrawn = stripsDrawn = 0;
    heatPath = "";
    moreHeat();
    moreStrips(STRIPS);
    by("status").textContent = `${counted(mapped.length, "lane")} of ${rows.length.toLocaleString("en")} shown`;
  }

  function selectAll() {
    const unfolded = state.unfolded;
    state.unfolded = true;
    const found = select().rows;
    state.unfolded = unfolded;
    return found;
  }

  function heatCell(at, { column, value, moved }) {
    const share = !largest || !value ? 0 : largest <= 10 ? value / largest : Math.log1p(value) / Math.log1p(largest);
    const name = columnName(column);
    if (!rows[at][2][column]) return make("td", { "data-column": name.replace(/^torch /, ""), class: "none" }, "–");
    const unit = data.trended[state.metric][value === 1 ? 2 : 3];
    return make("td", { "data-column": name.replace(/^torch /, "") }, make("button", { type: "button", class: `heat-cell l${Math.ceil(5 * share)}`, "data-row": at, "data-column": column,
      "aria-label": `${name}: ${value === null ? "not measured" : `${figure(value, state.metric)} ${unit}`}${moved ? moved > 0 ? ", more than before" : ", fewer than before" : ""}` },
      figure(value, state.metric), moved ? make("span", { class: "moved", "aria-hidden": "true" }, moved > 0 ? " ▲" : " ▼") : null));
  }

  function moreHeat() {
    const body = by("heat").tBodies[0];
    const shown = shownColumns();
    body.querySelector(".wide-row")?.remove();
    for (const at of mapped.slice(mappedDrawn, mappedDrawn + 400)) {
      const [contract, lane] = rows[at];
      const [path, name] = splitName(texts[contract]);
      if (path !== heatPath) body.append(make("tr", { class: "path-row" }, make("th", { colspan: shown.length + 1, scope: "rowgroup" }, path)));
      heatPath = path;
      body.append(make("tr", {}, make("th", { scope: "row", title: `${texts[contract]} [${texts[lane]}]` }, make("span", { class: "name" }, name), make("span", { class: "lane" }, ` ${texts[lane]}`)),
        stepsOf(at, shown, state.metric).map((each) => heatCell(at, each))));
    }
    mappedDrawn = Math.min(mappedDrawn + 400, mapped.length);
    if (mappedDrawn < mapped.length) body.append(make("tr", { class: "wide-row" }, make("td", { colspan: shown.length + 1 }, make("button", { type: "button", class: "quiet", id: "more-heat" }, `Show more of ${counted(mapped.length, "lane")}`))));
    if (!mapped.length) body.append(make("tr", { class: "wide-row" }, make("td", { class: "muted", colspan: shown.length + 1 }, rows.length ? "No lane matches the filter." : "No lane was measured.")));
  }

  function strip(at, shown, metric) {
    const steps = stepsOf(at, shown, metric);
    const [, label] = data.trended[metric];
    const most = Math.max(...steps.map((each) => each.value || 0), ...shown.map((column) => (metric === SECONDS ? spreadOf(at, column)[1] || 0 : 0)));
    const known = steps.filter((each) => each.value !== null);
    const steady = known.length > 1 && metric !== SECONDS && known.every((each) => each.value === known[0].value);
    const bars = steps.map(({ column, value, moved }) => {
      const spread = metric === SECONDS ? spreadOf(at, column) : [];
      const told = spread.length ? `${figure(value, metric)} (${figure(spread[0], metric)}–${figure(spread[1], metric)})` : figure(value, metric);
      const bar = make("span", { class: "bar", "aria-hidden": "true" }, make("i"));
      bar.firstChild.style.height = `${most && value ? Math.max(4, (100 * value) / most) : 0}%`;
      return make("li", { class: moved ? "moved" : "", title: `${columnName(column)}: ${value === null ? "not measured" : told}` },
        bar, make("span", { class: "value" }, figure(value, metric), moved ? make("span", { class: "hidden" }, moved > 0 ? ", more than before" : ", fewer than before") : null),
        spread.length ? make("span", { class: "spread" }, `${figure(spread[0], metric)}–${figure(spread[1], metric)}`) : null,
        make("span", { class: "release" }, columnName(column).replace(/^torch /, "")));
    });
    return make("div", { class: steady ? "strip steady" : "strip" }, make("h4", {}, label), make("ul", { class: "bars" }, bars));
  }

  function moreStrips(count) {
    const shown = shownColumns();
    const holder = by("strips");
    holder.querySelector("#more-strips")?.remove();
    for (const at of mapped.slice(stripsDrawn, stripsDrawn + count)) {
      const [contract, lane] = rows[at];
      const [path, name] = splitName(texts[contract]);
      holder.append(make("article", { class: "told-strip" },
        make("h3", {}, path ? make("span", { class: "path" }, `${path}::`) : null, parted(name), make("span", { class: "lane" }, ` [${texts[lane]}]`)),
        make("div", { class: "strips" }, data.trended.map((_, metric) => strip(at, shown, metric)))));
    }
    stripsDrawn = Math.min(stripsDrawn + count, mapped.length);
    if (stripsDrawn < mapped.length) holder.append(make("button", { type: "button", class: "quiet more", id: "more-strips" }, `Show more of ${counted(mapped.length, "lane")}`));
  }

  function drawViews() {
    document.querySelectorAll("#views button").forEach((each) => each.setAttribute("aria-current", String(each.dataset.view === state.view)));
    by("releases").hidden = state.view !== "releases";
    grid.hidden = state.view !== "verdicts";
    by("metrics").replaceChildren(...data.trended.map(([, label], metric) => make("button", { type: "button", class: "chip", "data-metric": metric, "aria-pressed": String(metric === state.metric) }, label)));
    by("changed").checked = state.changed;
  }

  by("views").addEventListener("click", (event) => {
    const view = event.target.dataset.view;
    if (view) { state.view = view; refresh(); by("views").querySelector(`[data-view="${view}"]`).focus(); }
  });
  by("changed").addEventListener("change", (event) => { state.changed = event.target.checked; refresh(); });
  by("releases").addEventListener("click", (event) => {
    const chosen = event.target.closest("button");
    if (!chosen) return;
    if (chosen.dataset.metric !== undefined) {
      state.metric = Number(chosen.dataset.metric);
      refresh();
      by("metrics").querySelector(`[data-metric="${state.metric}"]`).focus();
    } else if (chosen.id === "more-heat") moreHeat();
    else if (chosen.id === "more-strips") moreStrips(200);
    else if (chosen.dataset.row !== undefined) open(Number(chosen.dataset.row), Number(chosen.dataset.column));
  });

  function refresh() {
    drawViews();
    by("status").dataset.text = state.text;
    by("clear").hidden = !(state.text || state.lane || state.verdicts.size || state.columns.size < columns.length);
    if (state.view === "releases") {
      by("lists").hidden = true;
      drawReleases();
      return remember();
    }
    matching = select();
    drawn = 0;
    lastContract = -1;
    drawHead();
    body.replaceChildren(setupRow("installed"), setupRow("imported"));
    draw(BATCH);
    listed = 0;
    by("lists-body").replaceChildren();
    drawLists(60);
    const folded = matching.open || !matching.fine ? "" : `, ${matching.fine.toLocaleString("en")} that held everywhere folded`;
    by("status").textContent = `${counted(matching.rows.length, "lane")} of ${rows.length.toLocaleString("en")} shown${folded}`;
    remember();
  }

  // Near the end of what is drawn, the next rows are.
  const watcher = new IntersectionObserver((entries) => {
    if (entries.some((each) => each.isIntersecting)) draw(drawn + BATCH);
  }, { rootMargin: "600px" });

  // The three lists

  let told = [];
  function drawLists(more) {
    if (!listed) told = matching.rows.filter((at) => rows[at][3]);
    const holder = by("lists-body");
    holder.querySelector(".more")?.remove();
    for (const at of told.slice(listed, listed + more)) {
      const [contract, lane, , lists] = rows[at];
      const [path, name] = splitName(texts[contract]);
      const terms = LISTS.flatMap((title, kind) =>
        lists[kind].length ? [make("dt", {}, title), ...lists[kind].map((each) => make("dd", {}, texts[each]))] : []);
      holder.append(make("article", { class: "told" },
        make("h3", {}, path ? make("span", { class: "path" }, `${path}::`) : null, `${name} [${texts[lane]}]`), make("dl", {}, terms)));
    }
    listed = Math.min(listed + more, told.length);
    if (listed < told.length) {
      holder.append(make("button", { type: "button", class: "quiet more" }, `Show more of ${counted(told.length, "lane")}`));
    }
    by("lists").hidden = !told.length;
  }

  // A cell's detail

  function factItem(number, sign) {
    const [where, source, reason, hint, stack] = data.facts[number];
    const text = (each) => texts[each];
    return make("li", { class: sign ? "only" : "" },
      sign ? make("span", { class: "sign", "aria-label": sign === "+" ? "added" : "removed" }, sign) : null,
      text(where), text(source) ? make("code", {}, text(source)) : null,
      text(reason) ? make("span", { class: "said" }, text(reason)) : null,
      text(hint) && sign === "+" ? make("span", { class: "said" }, `hint: ${text(hint)}`) : null,
      stack.length ? make("span", { class: "said" }, `called from ${stack.map(text).reverse().join(", ")}`) : null);
  }

  function linesOf(cell) {
    const found = new Map();
    if (!cell || cell[MEASURED] < 0) return found;
    for (const number of data.measured[cell[MEASURED]]) {
      const [metric, value, facts] = data.lines[number];
      const [name, label] = data.metrics[metric];
      let key = label;
      while (found.has(key)) key += " ";
      found.set(key, { name, label, value: texts[value], facts });
    }
    if (cell[TOOK]) {
      data.seconds.forEach(([name, label], at) => {
        const took = cell[TOOK][at];
        if (took !== null) found.set(label, { name, label, value: String(took), facts: [], moves: true });
      });
    }
    return found;
  }

  function factList(line, other, sign) {
    const known = new Map();
    for (const [, keys] of other ? other.facts : []) for (const key of keys) known.set(key, (known.get(key) || 0) + 1);
    const items = line.facts.map(([fact, keys]) => {
      // As the comparison does: of several facts that are alike, as many as there are more.
      const alone = keys.filter((key) => {
        const left = known.get(key) || 0;
        known.set(key, left - 1);
        return left <= 0;
      }).length > 0;
      return factItem(fact, alone ? sign : "");
    });
    return items.length ? make("ul", { class: "facts" }, items) : null;
  }

  function sideBySide(cell, column, first) {
    const alone = column === 0 || !first;
    const before = linesOf(first), after = linesOf(cell);
    const judged = new Map();
    if (cell[CHANGES] >= 0) for (const change of data.changes[cell[CHANGES]][0]) judged.set(change[0], change);
    const table = make("table", { class: "sides" });
    const names = alone ? [columnName(column)] : [columnName(0), columnName(column)];
    table.append(make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Metric"), names.map((name) => make("th", { scope: "col" }, name)))));
    const lines = make("tbody");
    for (const key of new Set([...(alone ? [] : before.keys()), ...after.keys()])) {
      const was = before.get(key), now = after.get(key), some = now || was;
      const change = judged.get(some.name);
      const differs = !alone && (change !== undefined || (was && now && !some.moves && was.value !== now.value));
      const kind = change ? { worse: "worse", better: "better" }[change[2]] || "" : "";
      const why = !differs ? "" : change ? [change[2], change[3] ? "judged" : "not judged", texts[change[4]] ? `waived: ${texts[change[4]]}` : ""].filter(Boolean).join(", ") : "differs, not judged";
      const side = (line, other, sign, name) => make("td", { "data-column": name },
        make("div", {}, line ? line.value : "–", line ? factList(line, alone ? line : other, sign) : null));
      const row = make("tr", { class: differs ? `changed ${kind}` : "same" },
        make("th", { scope: "row" }, differs ? make("span", { class: "mark", "aria-hidden": "true" }, "≠ ") : null, some.label,
          why ? make("span", { class: "why" }, why) : null));
      if (!alone) row.append(side(was, now, "−", names[0]));
      row.append(side(now, was, "+", names[names.length - 1]));
      lines.append(row);
    }
    table.append(lines);
    if (alone) return [table];
    const box = make("input", { type: "checkbox", id: "only" });
    box.addEventListener("change", () => lines.querySelectorAll(".same").forEach((row) => { row.hidden = box.checked; }));
    return [make("label", { class: "switch" }, box, "only what differs"), table];
  }

  function open(at, column) {
    const [contract, lane, cells] = rows[at];
    const cell = cells[column];
    if (!cell) return;
    const [path, name] = splitName(texts[contract]);
    const close = make("button", { type: "button", class: "close" }, "Close");
    close.addEventListener("click", () => dialog.close());
    const where = column === 0 ? `${columnName(0)}, held to the contract's own limits` : `${columnName(0)} → ${columnName(column)}`;
    const parts = [];
    if (texts[cell[REASON]]) parts.push(section("Why", make("p", { class: "reason" }, texts[cell[REASON]])));
    const changes = cell[CHANGES] < 0 ? [[], [], []] : data.changes[cell[CHANGES]];
    if (changes[0].length) {
      parts.push(section("What changed", make("ul", { class: "plain" }, changes[0].map(([, headline, direction, gates, waived, came, went, excuse]) =>
        make("li", {}, make("strong", {}, texts[headline]), ` ${[direction, texts[excuse] || (gates ? "" : "not judged"), texts[waived] ? `waived: ${texts[waived]}` : ""].filter(Boolean).join(", ")}`,
          came.length + went.length ? make("ul", { class: "facts" }, went.map((each) => factItem(each, "−")), came.map((each) => factItem(each, "+"))) : null)))));
    }
    if (changes[1].length) parts.push(section("Not known", make("ul", { class: "plain" }, changes[1].map((each) => make("li", {}, texts[each])))));
    if (changes[2].length) parts.push(section("Not gated", make("ul", { class: "plain" }, changes[2].map((each) => make("li", {}, texts[each])))));
    if (texts[cell[RERUN]]) parts.push(rerun(texts[cell[RERUN]]));
    if (cell[MEASURED] >= 0 || (column > 0 && cells[0])) parts.push(section(column === 0 ? "Measured" : "Measured, side by side", sideBySide(cell, column, cells[0])));
    if (cell[DIFFS]) {
      const kinds = { "+": "came", "-": "went", "@": "where" };
      parts.push(section("Graphs, from the evidence of both sides", cell[DIFFS].length ? cell[DIFFS].map(([file, lines]) =>
        make("details", { class: "graph", open: cell[DIFFS].length === 1 }, make("summary", {}, texts[file]),
          make("pre", {}, lines.map((each) => make("span", { class: kinds[texts[each][0]] || "" }, `${texts[each]}\n`))))) : make("p", { class: "muted" }, "no difference")));
    }
    const attribution = cell[ATTRIBUTION] < 0 ? [] : data.attributions[cell[ATTRIBUTION]];
    if (attribution.length) {
      parts.push(section("What differs between the two runs", make("ul", { class: "plain" }, attribution.map(([kind, found]) =>
        make("li", {}, make("span", { class: "muted" }, `${kind}: `), found.map((each) => texts[each]).join(", "))))));
    }
    const own = column > 0 && texts[cell[OWN]] ? make("span", { class: "muted" }, `  by the contract's own limits: ${texts[cell[OWN]]}`) : null;
    dialog.firstElementChild.replaceChildren(
      make("header", {}, make("div", {},
        make("h2", { id: "detail-title" }, path ? make("span", { class: "path" }, path) : null, `${name} [${texts[lane]}]`),
        make("p", { class: "muted" }, where), make("p", {}, verdictTag(cell[VERDICT]), own)), close),
      make("div", { class: "body" }, parts));
    dialog.dataset.cell = `${at}.${column}`;
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    close.focus();
    remember();
  }

  // The keyboard: the table is one stop, and the arrows move inside it.

  function focusCell(button) {
    if (!button) return;
    body.querySelectorAll(".cell[tabindex='0']").forEach((each) => each.setAttribute("tabindex", "-1"));
    button.setAttribute("tabindex", "0");
    button.focus();
    button.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  function nearest(row, column) {
    const buttons = [...row.querySelectorAll(".cell")];
    return buttons.find((each) => Number(each.dataset.column) >= column) || buttons[buttons.length - 1];
  }

  function neighbour(row, step) {
    let next = row;
    for (let left = Math.abs(step); left > 0; left--) {
      let found = step > 0 ? next.nextElementSibling : next.previousElementSibling;
      while (found && !found.querySelector(".cell")) {
        if (step > 0 && found.querySelector("#more")) { draw(drawn + BATCH); found = next; }
        found = step > 0 ? found.nextElementSibling : found.previousElementSibling;
      }
      if (!found) break;
      next = found;
    }
    return next;
  }

  grid.addEventListener("keydown", (event) => {
    const button = event.target.closest(".cell");
    if (!button || event.altKey || event.metaKey) return;
    const row = button.closest("tr");
    const column = Number(button.dataset.column);
    const buttons = [...row.querySelectorAll(".cell")];
    const at = buttons.indexOf(button);
    const whole = [...body.querySelectorAll(".cell")];
    const next = {
      ArrowRight: () => buttons[at + 1],
      ArrowLeft: () => buttons[at - 1],
      ArrowDown: () => nearest(neighbour(row, 1), column),
      ArrowUp: () => nearest(neighbour(row, -1), column),
      PageDown: () => nearest(neighbour(row, 10), column),
      PageUp: () => nearest(neighbour(row, -10), column),
      Home: () => (event.ctrlKey ? whole[0] : buttons[0]),
      End: () => (event.ctrlKey ? whole[whole.length - 1] : buttons[buttons.length - 1]),
    }[event.key];
    if (!next) return;
    event.preventDefault();
    focusCell(next());
  });

  grid.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.id === "more") return draw(drawn + BATCH);
    if (button.id === "fold") {
      state.unfolded = !state.unfolded;
      refresh();
      return by("fold")?.focus();
    }
    body.querySelectorAll(".cell[tabindex='0']").forEach((each) => each.setAttribute("tabindex", "-1"));
    button.setAttribute("tabindex", "0");
    open(Number(button.dataset.row), Number(button.dataset.column));
  });

  dialog.addEventListener("close", () => {
    delete dialog.dataset.cell;
    remember();
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  by("lists-body").addEventListener("click", (event) => { if (event.target.closest(".more")) drawLists(200); });

  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !dialog.open && !event.target.closest("input, select")) {
      event.preventDefault();
      by("text").focus();
    }
  });

  // What is chosen is kept in the address, so that it can be sent to somebody.

  function remember() {
    const said = new URLSearchParams();
    if (state.text) said.set("text", state.text);
    if (state.lane) said.set("lane", state.lane);
    if (state.verdicts.size) said.set("verdict", [...state.verdicts].join(","));
    if (state.columns.size < columns.length) said.set("columns", [...state.columns].sort((a, b) => a - b).join(","));
    if (state.unfolded) said.set("unfolded", "1");
    if (state.view !== "verdicts") {
      said.set("view", state.view);
      said.set("measure", data.trended[state.metric][0]);
      if (state.changed) said.set("changed", "1");
    }
    if (dialog.dataset.cell) said.set("cell", dialog.dataset.cell);
    try {
      history.replaceState(null, "", said.size ? `#${said}` : location.pathname + location.search);
    } catch {
      // Some places that show a page from a file let it have no address of its own.
    }
  }

  function recall() {
    const said = new URLSearchParams(location.hash.slice(1));
    state.text = said.get("text") || "";
    state.lane = said.get("lane") || "";
    state.verdicts = new Set((said.get("verdict") || "").split(",").filter(Boolean));
    const wanted = (said.get("columns") || "").split(",").filter(Boolean).map(Number).filter((at) => columns[at]);
    if (wanted.length) state.columns = new Set(wanted);
    state.unfolded = said.get("unfolded") === "1";
    state.view = said.get("view") === "releases" ? "releases" : "verdicts";
    const measure = data.trended.findIndex(([name]) => name === said.get("measure"));
    if (measure >= 0) state.metric = measure;
    state.changed = said.get("changed") === "1";
    return (said.get("cell") || "").split(".").map(Number);
  }

  function chip(label, pressed, pressing, count) {
    const button = make("button", { type: "button", class: "chip", "aria-pressed": String(pressed) }, label,
      count === undefined ? null : make("span", { class: "count" }, count.toLocaleString("en")));
    button.addEventListener("click", () => { pressing(); drawFilters(); refresh(); [...document.querySelectorAll(".chip")].find((each) => each.textContent === button.textContent)?.focus(); });
    return button;
  }

  const lanesWith = {};
  for (const row of rows) {
    for (const verdict of new Set(row[2].filter(Boolean).map((cell) => cell[VERDICT]))) lanesWith[verdict] = (lanesWith[verdict] || 0) + 1;
  }

  function toggle(set, value) {
    if (!set.delete(value)) set.add(value);
  }

  function drawFilters() {
    const known = [...ORDER.filter((each) => lanesWith[each]), ...Object.keys(lanesWith).filter((each) => !VERDICTS[each])];
    by("verdicts").replaceChildren(...known.map((verdict) => chip(
      [make("span", { "aria-hidden": "true" }, (VERDICTS[verdict] || "?")[0]), make("span", {}, verdict)],
      state.verdicts.has(verdict), () => toggle(state.verdicts, verdict), lanesWith[verdict])));
    by("columns").replaceChildren(...columns.map((_, at) => chip(columnName(at), state.columns.has(at), () => {
      toggle(state.columns, at);
      if (!state.columns.size) state.columns = new Set(columns.keys());
    })));
    by("text").value = state.text;
    by("lane").value = state.lane;
  }

  by("lane").append(...[...new Set(rows.map((row) => texts[row[1]]))].sort().map((name) => make("option", { value: name }, name)));
  by("lane").addEventListener("change", (event) => { state.lane = event.target.value; refresh(); });
  let typing = 0;
  by("text").addEventListener("input", (event) => {
    clearTimeout(typing);
    typing = setTimeout(() => { state.text = event.target.value.trim(); refresh(); }, 80);
  });
  by("filters").addEventListener("submit", (event) => event.preventDefault());
  by("clear").addEventListener("click", () => {
    state.text = state.lane = "";
    state.verdicts.clear();
    state.columns = new Set(columns.keys());
    drawFilters();
    refresh();
    by("text").focus();
  });

  window.addEventListener("beforeprint", () => {
    if (dialog.open) return;
    if (state.view === "releases") { while (mappedDrawn < mapped.length) moreHeat(); moreStrips(100); } else { draw(Infinity); drawLists(Infinity); }
  });

  const [at, column] = recall();
  drawFilters();
  refresh();
  if (rows[at] && columns[column]) open(at, column);
})();
