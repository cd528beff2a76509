"use strict";
/* The board of a tuned comparison: a sortable table, curves of the selected entries, and how to check a row. */
(() => {
  const { data, h, section, canvas, choice, quoted, number, plain, swatch } = Page;
  const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1"];
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const NUM_SELECTED = 5;
  const metric = data.metric,
    target = (place) => data.targets[place].name,
    name = metric.is_share ? "accuracy" : metric.name;
  const shown = { beta: String(data.betas[0]), group: "", target: data.targets.length - 1 };
  const order = { key: "time_s", down: false };
  const slots = new Map(); // the selected entries, each with the number of its color
  const open = new Set(); // the rows whose details are shown

  function value(one) {
    if (one === null || one === undefined) return "–";
    return metric.is_share ? number(100 * one, 1) : one.toLocaleString("en", { maximumSignificantDigits: 4 });
  }

  function withHalf(one, half) {
    return half === null || half === undefined ? value(one) : `${value(one)} ± ${value(half)}`;
  }

  /** A cost in a larger unit, with at least two significant digits. */
  function large(one, unit) {
    return one === null ? "–" : number(one / unit, one < 10 * unit ? 1 : 0);
  }

  const cost = (row) => row.costs[shown.target];
  const hasOthers = data.rows.some((row) => row.others !== null);
  /** Columns: key, heading, what is sorted by, text, and whether larger values are better. */
  const columns = [
    { key: "value", title: () => `${name} at ${number(data.final_s)}\u00a0s${metric.is_share ? " (%)" : ""}`, of: (row) => row.value, text: (row) => withHalf(row.value, row.half), up: metric.higher_is_better, meter: true },
    { key: "time_s", title: () => `time to ${target(shown.target)} (s)`, of: (row) => cost(row).time_s, text: (row) => number(cost(row).time_s), meter: true },
    { key: "reached", title: () => `seeds that reach ${target(shown.target)}`, of: (row) => cost(row).seeds, text: (row) => `${cost(row).seeds} of ${row.seeds}`, up: true },
    { key: "uploads", title: () => `uploads to ${target(shown.target)}`, of: (row) => cost(row).uploads, text: (row) => number(cost(row).uploads) },
    { key: "bytes_up", title: () => `MB uploaded to ${target(shown.target)}`, of: (row) => cost(row).bytes_up, text: (row) => large(cost(row).bytes_up, 1e6) },
    { key: "energy_j", title: () => `energy to ${target(shown.target)} (kJ)`, of: (row) => cost(row).energy_j, text: (row) => large(cost(row).energy_j, 1e3) },
    ...(hasOthers ? [{ key: "others", title: () => "accuracy on slow clients' own data (%)", of: (row) => row.others, text: (row) => withHalf(row.others, row.others_half), up: true }] : []),
    { key: "collapsed", title: () => "collapsed", of: (row) => row.collapsed, text: (row) => (row.collapsed ? `${row.collapsed} of ${row.seeds}${row.diverged ? `, ${row.diverged} diverged` : ""}` : "0") },
  ];
  const named = { key: "entry", title: () => "entry", of: (row) => row.entry };

  const best = h("div", { class: "cards" }),
    place = h("div"),
    curves = h("div");
  const draw = canvas(curves);

  function rowsShown() {
    return data.rows.filter(
      (row) => (!shown.beta || String(row.beta) === shown.beta) && (!shown.group || row.group === shown.group),
    );
  }

  /** A number that is lower the better the final value, and highest if there is none. */
  function rank(row) {
    if (row.value === null) return Number.MAX_VALUE;
    return metric.higher_is_better ? -row.value : row.value;
  }

  function sorted(rows, { key, down }) {
    const of = [named, ...columns].find((column) => column.key === key).of;
    return [...rows].sort((one, other) => {
      const [a, b] = [of(one), of(other)];
      if (a === null || b === null) return (a === null) - (b === null) || rank(one) - rank(other) || one.entry.localeCompare(other.entry);
      const sign = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
      return (down ? -sign : sign) || one.entry.localeCompare(other.entry);
    });
  }

  function look(entry) {
    const slot = slots.get(entry);
    return slot === undefined ? null : COLORS[slot % COLORS.length];
  }

  function toggle(entry) {
    if (!slots.delete(entry)) {
      const taken = new Set(slots.values());
      let slot = 0;
      while (taken.has(slot)) slot += 1;
      slots.set(entry, slot);
    }
    update();
  }

  /** A bar from the lowest to the highest value of a column, with a mark at the value and its interval. */
  function meter(column, row, [low, high]) {
    const at = column.of(row);
    if (at === null || high <= low) return null;
    const share = (one) => `${(100 * Math.min(1, Math.max(0, (one - low) / (high - low)))).toFixed(1)}%`;
    const half = column.key === "value" ? row.half : null;
    const band = half === null ? null : h("i", { style: `left:${share(at - half)};right:calc(100% - ${share(at + half)})` });
    const dot = h("b", { style: `left:${share(at)}${look(row.entry) ? `;background:${look(row.entry)}` : ""}` });
    return h("span", { class: "meter", "aria-hidden": "true" }, band, dot);
  }

  function range(column, rows) {
    const half = (row) => (column.key === "value" ? (row.half ?? 0) : 0);
    const known = rows.filter((row) => column.of(row) !== null);
    const low = Math.min(...known.map((row) => column.of(row) - half(row)));
    return [column.key === "value" ? low : 0, Math.max(...known.map((row) => column.of(row) + half(row)))];
  }

  function heading(column, first = false) {
    const active = order.key === column.key;
    const press = () => {
      Object.assign(order, { key: column.key, down: active ? !order.down : Boolean(column.up) });
      update();
      place.querySelector(`[data-key="${column.key}"]`).focus();
    };
    return h(
      "th",
      { scope: "col", "aria-sort": active ? (order.down ? "descending" : "ascending") : null, class: first ? "pinned" : null },
      h("button", { type: "button", class: "sort", "data-key": column.key, click: press }, column.title(), h("span", { "aria-hidden": "true" }, active ? (order.down ? " ▼" : " ▲") : "")),
    );
  }

  function details(row) {
    const digests = h(
      "p",
      { class: "quiet" },
      "SHA-256 of the stored numbers of these runs: schedule ",
      h("code", { title: row.schedule_digest }, row.schedule_digest.slice(0, 16)),
      ", schedule and results ",
      h("code", { title: row.digest }, row.digest.slice(0, 16)),
      ".",
    );
    return h(
      "div",
      { class: "inside" },
      h("p", {}, `${row.settings === "–" ? "Not tuned" : `Chosen by tuning: ${row.settings}`}. ${row.seeds} seeds.`),
      h("p", { class: "quiet" }, `To rerun this row and compare every number, run this ${row.where}:`),
      quoted(row.command, `the command for ${row.entry}`),
      h("details", {}, h("summary", {}, `All settings of the run with seed ${row.toml_seed}, as a file for lesson run`), quoted(row.toml, `the settings of ${row.entry}`)),
      digests,
    );
  }

  function lines(row, ranges) {
    const key = `${row.entry} ${row.beta}`,
      color = look(row.entry);
    const box = h("input", { type: "checkbox", "aria-label": `Draw the curve of ${row.entry}`, change: () => toggle(row.entry) });
    box.checked = Boolean(color);
    const press = () => {
      if (!open.delete(key)) open.add(key);
      update();
    };
    const button = h(
      "button",
      { type: "button", class: "name", "aria-expanded": String(open.has(key)), click: press },
      h("span", { "aria-hidden": "true" }, open.has(key) ? "▾ " : "▸ "),
      row.entry,
    );
    const head = h("th", { scope: "row", class: "pinned" }, h("span", { class: "who" }, box, swatch(color ?? "transparent"), button));
    const beta = shown.beta ? [] : [h("td", {}, `${row.beta}`)];
    const cells = columns.map((column, at) =>
      h("td", {}, column.text(row), column.meter ? meter(column, row, ranges[at]) : null),
    );
    const made = [h("tr", { class: color ? "chosen" : null }, head, ...beta, ...cells)];
    if (open.has(key)) made.push(h("tr", { class: "more" }, h("td", { colspan: columns.length + 1 + beta.length }, details(row))));
    return made;
  }

  function table() {
    const rows = sorted(rowsShown(), order),
      ranges = columns.map((column) => range(column, rows));
    const beta = shown.beta ? [] : [h("th", { scope: "col" }, "β")];
    const caption = `${rows.length} rows${shown.beta ? `, β = ${shown.beta}` : ""}. Click a heading to sort, or a name to see its settings and the command that reruns it.`;
    const head = h("thead", {}, h("tr", {}, heading(named, true), ...beta, ...columns.map((column) => heading(column))));
    const body = h("tbody", {}, rows.flatMap((row) => lines(row, ranges)));
    return h(
      "div",
      {},
      h("p", { class: "quiet" }, caption),
      h("div", { class: "scroll board", tabindex: "0", role: "region", "aria-label": caption }, h("table", {}, head, body)),
    );
  }

  /** The best row by each of four columns. */
  function cards() {
    const rows = rowsShown();
    const said = { value: `${metric.higher_is_better ? "Highest" : "Lowest"} final ${name}`, time_s: `Shortest time to ${target(shown.target)}`, uploads: `Fewest uploads to ${target(shown.target)}`, energy_j: `Least energy to ${target(shown.target)}` };
    const units = { value: metric.is_share ? " %" : "", time_s: " s", uploads: "", energy_j: " kJ" };
    return Object.entries(said).map(([key, label]) => {
      const column = columns.find((one) => one.key === key);
      const [first] = sorted(rows.filter((row) => column.of(row) !== null), { key, down: Boolean(column.up) });
      const color = first && look(first.entry);
      return h(
        "div",
        { class: "card swatched", style: color ? `--swatch:${color}` : null },
        h("div", { class: "label" }, label),
        h("div", { class: "value" }, first ? `${column.text(first)}${units[key]}` : "–"),
        h("div", { class: "note" }, first ? `${first.entry}${shown.beta ? "" : `, β = ${first.beta}`}` : "no row reaches it"),
      );
    });
  }

  function faint(color) {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
    return `rgba(${r},${g},${b},0.16)`;
  }

  function traces(row) {
    const { at, mean, low, high } = row.curve,
      color = look(row.entry),
      group = `${row.entry} ${row.beta}`;
    const turn = Math.floor(slots.get(row.entry) / COLORS.length) + (shown.beta ? 0 : data.betas.indexOf(row.beta));
    const line = { color, dash: DASHES[turn % DASHES.length], width: 2.2 };
    const label = plain(shown.beta ? row.entry : `${row.entry}, β = ${row.beta}`);
    const middle = { x: at, y: mean, name: label, legendgroup: group, line, mode: "lines", hovertemplate: metric.is_share ? "%{y:.1%}" : "%{y:.4~g}" };
    if (!low) return [middle];
    const edge = { x: at, legendgroup: group, mode: "lines", line: { width: 0, color }, showlegend: false, hoverinfo: "skip" };
    return [{ ...edge, y: low }, { ...edge, y: high, fill: "tonexty", fillcolor: faint(color) }, middle];
  }

  function chart() {
    const rows = rowsShown().filter((row) => slots.has(row.entry));
    const goal = data.targets.map((one) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: one.value, y1: one.value, line: { color: "rgba(127,127,127,0.5)", width: 1, dash: "dot" } }));
    const layout = {
      hovermode: "x unified",
      shapes: goal,
      xaxis: { title: { text: "simulated time (1000 s)" }, rangemode: "tozero" },
      yaxis: { title: { text: `test ${name}` }, ...(metric.is_share ? { tickformat: ".0%" } : {}) },
    };
    const ends = rows.map((row) => `${row.entry} at β = ${row.beta} ends at ${value(row.curve.mean.at(-1))}`).join(", ");
    draw({ alt: `Test ${name} over simulated time: ${ends || "no entry is selected"}.`, traces: rows.flatMap(traces), layout, height: 460 });
  }

  function update() {
    best.replaceChildren(...cards());
    place.replaceChildren(table());
    chart();
  }

  function pick(key) {
    return (wanted) => {
      shown[key] = wanted;
      if (place.firstChild) update();
    };
  }

  function select(entries) {
    slots.clear();
    entries.forEach((entry, slot) => slots.set(entry, slot));
    if (place.firstChild) update();
  }

  const firstFew = () => [...new Set(sorted(rowsShown(), order).map((row) => row.entry))].slice(0, NUM_SELECTED);

  function board() {
    const interval = data.seeds < data.min_seeds ? `Values are means over ${data.seeds === 1 ? "one seed" : `${data.seeds} seeds`}.` : `A value after ± is half a 95 % confidence interval over ${data.seeds} seeds.`;
    const made = section(
      "board",
      "Board",
      `All entries ran with the same clients, data and ${data.seeds === 1 ? "seed" : "seeds"}, with the settings that tuning chose, on ${data.dataset} for ${number(data.final_s)} simulated seconds. ${interval} Costs to a target are medians over seeds.`,
    );
    const betas = [...data.betas.map((beta) => [String(beta), `β = ${beta}`]), ...(data.betas.length > 1 ? [["", "all β"]] : [])];
    const groups = [["", "all groups"], ...data.groups.filter((group) => data.rows.some((row) => row.group === group.name)).map((group) => [group.name, group.title])];
    const targets = data.targets.map((one, at) => [at, `target ${one.name}`]).reverse();
    made.append(
      h("div", { class: "controls" }, choice("β", betas, pick("beta")), choice("Target", targets, pick("target"))),
      ...(groups.length > 2 ? [h("div", { class: "controls" }, choice("Group", groups, pick("group")))] : []),
      best,
      place,
    );
    const drawn = section("curves", "Curves", `Test ${name} of the entries that are selected in the table: mean${data.seeds < data.min_seeds ? "" : " and 95 % confidence interval"} over the runs that have not collapsed, each value averaged over three evaluations. Dotted lines are the targets.`);
    drawn.append(
      h("div", { class: "controls" }, h("button", { type: "button", click: () => select(firstFew()) }, `Draw the first ${NUM_SELECTED} rows`), h("button", { type: "button", click: () => select([]) }, "Clear")),
      curves,
    );
    select(firstFew());
    update();
  }

  function check() {
    const made = section("check", "Check a row");
    const told = [
      "All numbers follow from runs.jsonl.gz in the folder of this page. The command of a row reruns its runs and compares every stored number: they must be identical on the same hardware with the same versions; elsewhere, the simulated schedule must be identical unless it depends on training, and the mean accuracy must agree within the spread over seeds.",
      data.made_with.length ? `The runs were executed on ${data.made_with.join("; ")}.` : null,
      "To put your own strategy on a board, add an entry with strategy = { name = \"module:Class\" } to the study's file and rerun lesson sweep --tune.",
    ];
    made.append(...told.filter(Boolean).map((text) => h("p", {}, text)));
  }

  function read() {
    const made = section("read", "How to read the board");
    const told = [
      `A target is reached at the first evaluation at which the mean of three consecutive evaluations reaches it. A run that never reaches it counts as infinite, so a median is a dash (–) unless more than half of the seeds reach the target.`,
      metric.is_share
        ? "A run has collapsed if it diverged, or if its final accuracy is at most 20 %, or at most half of its own best. Collapsed runs reach no target; accuracies are those of the other runs."
        : "A run has collapsed if it diverged. Collapsed runs reach no target; values are those of the other runs.",
      hasOthers ? "Slow clients are those that need longer than the entry's own deadline, so they are not the same clients in every row." : null,
      "Rows whose intervals overlap are sorted, but not ranked. Comparisons paired by seed can tell more of them apart: see time_ratio and the gain in table.csv.",
    ];
    made.append(...told.filter(Boolean).map((text) => h("p", {}, text)));
  }

  [board, check, read].forEach((part) => part());
})();
