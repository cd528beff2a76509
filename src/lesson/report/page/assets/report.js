"use strict";
/* The page of a study: what was run and what came of it. */
(() => {
  const { data, h, section, table, chart, choice, quoted, number, plain, swatch } = Page;
  const groups = data.groups;
  const several = groups.length > 1, contenders = data.varies.join(", ");
  const IDEA = [
    "Federated learning trains one model on data that stays with many clients: each takes a step on its own data and sends the result to a server, which averages. Clients differ. Waiting for the slowest in every round (FedAvg) is slow; leaving the slow ones out (FedCS) loses what only they know.",
    "LESSON does neither. A deadline τ divides time into rounds. A client that needs up to one deadline is in tier 1 and uploads in every round; one that needs up to two is in tier 2 and uploads in every second round; and so on. The server merges whoever is due. Slow clients take larger steps, in proportion to their tier, so that they count as much as fast ones.",
    "Everything here is measured in simulated time: computing and radio of each client follow a model (or measurements), and every strategy runs on the same clock.",
  ];

  function strategyName(place) { return [swatch(groups[place].colour), groups[place].label]; }

  function groupOf(label) { return groups.findIndex((group) => group.label === label); }

  /** An axis of tiers, in their order whichever strategy has them first. */
  function tierAxis(rows) {
    const tiers = [...new Set(rows.flat().map((row) => row.tier))].sort((one, other) => one - other);
    return { type: "category", categoryorder: "array", categoryarray: tiers.map(tierName) };
  }

  function whatWasRun() {
    const made = section("what", "What was run", data.what, "Run");
    if (data.notes.length) made.append(h("ul", { class: "quiet" }, data.notes.map((note) => h("li", {}, note))));
    const failed = Object.entries(data.failures);
    if (failed.length) made.append(h("p", { role: "note" }, `${failed.length} of the runs failed: `, failed.slice(0, 5).map(([name, why]) => `${name} (${why})`).join("; ")));
    made.append(h("details", { open: true }, h("summary", {}, "How LESSON works, in three paragraphs"), IDEA.map((text) => h("p", {}, text))));
  }

  function verdict() {
    const made = section("verdict", "The verdict", groups.some((group) => group.seeds > 1) ? "Means over seeds, ± half a 95 % interval by Student's t. Accuracy is the mean of the last ten evaluations, or of all if there are fewer. A time to a target is that of the first evaluation whose mean with the two before reaches it; it is given where every seed does." : null, "Verdict");
    made.append(h("div", { class: "cards" }, data.verdict.cards.map((card) => {
      const place = groupOf(card.who);
      return h("div", { class: "card swatched", style: place >= 0 ? `--swatch:${groups[place].colour}` : null },
        h("div", { class: "label" }, card.label), h("div", { class: "value" }, card.value), h("div", {}, card.who), h("div", { class: "note quiet" }, card.note));
    })));
    made.append(table("Every contender", [contenders, ...data.verdict.columns],
      data.verdict.rows.map(([label, ...rest]) => [groupOf(label) >= 0 ? h("span", {}, strategyName(groupOf(label))) : label, ...rest])));
  }

  function accuracy() {
    if (!data.curves.some((curve) => curve.time_s.at.length)) return;
    const lead = "How good the model is on test images it has never seen. Hover to read all lines at one moment; drag to zoom, double-click to come back." +
      (data.hidden ? ` The ${groups.length} best of ${groups.length + data.hidden} are drawn.` : "");
    const made = section("accuracy", "Accuracy", lead);
    const axes = { time_s: "simulated time (s)", round: "global rounds" };
    const place = h("div");
    let drawn = null;
    const pick = (over) => {
      const traces = data.curves.flatMap((curve, at) => lines(curve[over], groups[at]));
      const layout = { hovermode: "x unified", xaxis: { title: { text: axes[over] }, rangemode: "tozero" }, yaxis: { title: { text: "test accuracy" }, tickformat: ".0%", rangemode: "tozero" } };
      const alt = `Test accuracy over ${axes[over]}: ${data.curves.map((curve, at) => `${groups[at].label} ends at ${percent(curve[over].mean.at(-1))}`).join(", ")}.`;
      if (drawn) drawn.update(traces, layout, alt);
      else drawn = chart(place, { alt, traces, layout, height: 430, numbers: accuracyNumbers() });
    };
    made.append(place);
    place.before(h("div", { class: "controls" }, choice("Horizontal axis", [["time_s", "over simulated time"], ["round", "over rounds"]], pick)));
  }

  function lines(curve, group) {
    const shared = { x: curve.at, legendgroup: group.label, line: { color: group.colour, dash: group.dash, width: 2 } };
    const mean = { ...shared, y: curve.mean, name: plain(group.label), mode: curve.at.length > 3 ? "lines" : "lines+markers", hovertemplate: "%{y:.1%}" };
    if (!curve.low) return [mean];
    const edge = { ...shared, mode: "lines", line: { width: 0, color: group.colour }, showlegend: false, hoverinfo: "skip" };
    return [{ ...edge, y: curve.low }, { ...edge, y: curve.high, fill: "tonexty", fillcolor: faint(group.colour) }, mean];
  }

  function faint(colour) {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    return `rgba(${r},${g},${b},0.18)`;
  }

  /** The looks of a bar: where lines of a colour are told apart by dashes, bars are by hatching. */
  function fill(group) {
    const shape = { solid: "", dash: "/", dot: ".", dashdot: "x" }[group.dash];
    return { color: group.colour, pattern: { shape, fillmode: "overlay", size: 6, solidity: 0.35 } };
  }

  function percent(value) { return value === undefined || value === null ? "–" : `${(100 * value).toFixed(1)} %`; }

  function accuracyNumbers() {
    const at = [0.1, 0.25, 0.5, 0.75, 1];
    const end = Math.max(...data.curves.map((curve) => curve.time_s.at.at(-1) ?? 0));
    return table("Mean accuracy by simulated time", [contenders, ...at.map((share) => `${number(share * end)} s`)],
      data.curves.map((curve, place) => [groups[place].label, ...at.map((share) => percent(lastBefore(curve.time_s, share * end)))]));
  }

  function lastBefore(curve, moment) {
    let found;
    curve.at.forEach((at, place) => { if (at <= moment + 1e-9) found = curve.mean[place]; });
    return found;
  }

  function explorer() {
    if (!data.fleet) return;
    const made = section("deadline", "The clients and their deadline",
      "Where the clients are, around the base station, and what another deadline would do to them. Move τ and everything follows; nothing is trained for it.", "Deadline");
    Explorer.mount(made, data.fleet);
  }

  function schedule() {
    const there = data.schedule.map((one, place) => [one, place]).filter(([one]) => one && one.pieces.length);
    if (!there.length) return;
    const made = section("schedule", "Who works when", "A row is a client, the fast ones on top. It trains, uploads, perhaps waits for its round to end, and is merged at the diamond. Drag to zoom." + someDrawn(there), "Schedule");
    const place = h("div");
    let drawn = null;
    const pick = (at) => {
      const [traces, layout] = work(data.schedule[at], groups[at].label);
      const alt = `Schedule of ${groups[at].label}: ${data.schedule[at].pieces.length} pieces of work of ${data.schedule[at].clients.length} clients.`;
      if (drawn) drawn.update(traces, layout, alt);
      else drawn = chart(place, { alt, traces, layout, height: 520 });
    };
    made.append(place);
    there.sort(([, one], [, other]) => groups[other].label.startsWith("lesson") - groups[one].label.startsWith("lesson"));
    const controls = choice("Strategy", there.map(([, at]) => [at, groups[at].label]), pick);
    if (there.length > 1) place.before(h("div", { class: "controls" }, controls));
  }

  function someDrawn(there) {
    const [{ clients, num_clients: all }] = there[0];
    return clients.length < all ? ` ${clients.length} of ${number(all)} clients are drawn.` : "";
  }

  function work({ pieces, ends_s: ends, until_s: until, clients, names }, label) {
    const row = new Map(clients.map((client, place) => [client, place]));
    const name = new Map(clients.map((client, place) => [client, plain(`${names[place]}`)]));
    const bar = (from, to, title, colour, those = pieces.filter((piece) => piece[2] !== null)) => ({
      type: "bar", orientation: "h", name: title, marker: { color: colour }, base: those.map((piece) => piece[from]),
      x: those.map((piece) => piece[to] - piece[from]), y: those.map((piece) => row.get(piece[0])), showlegend: those.length > 0,
      hovertemplate: those.map((piece) => `client ${name.get(piece[0])}, ${title}: ${number(piece[from], 1)} to ${number(piece[to], 1)} s<extra></extra>`),
    });
    const whole = pieces.filter((piece) => piece[2] === null);
    const merged = {
      type: "scatter", mode: "markers", name: "is merged", x: pieces.map((piece) => piece[4]), y: pieces.map((piece) => row.get(piece[0])),
      marker: { symbol: "diamond", size: 6, color: "#d55e00" }, hovertemplate: "merged at %{x:.1f} s<extra></extra>",
    };
    const every = Math.max(1, Math.ceil(clients.length / 25));
    return [[bar(1, 2, "trains", "#4c86b8"), bar(2, 3, "uploads", "#e0a030"), bar(1, 3, "trains and uploads", "#7a9e8a", whole), bar(3, 4, "waits", "rgba(128,128,128,0.28)", pieces), merged], {
      barmode: "overlay", bargap: 0.25,
      xaxis: { title: { text: `simulated time (s), ${plain(label)}` }, range: [0, until] },
      yaxis: { autorange: "reversed", tickvals: clients.map((_, place) => place).filter((place) => place % every === 0), ticktext: clients.map((client) => `${name.get(client)}`).filter((_, place) => place % every === 0), title: { text: "client, fast to slow" } },
      shapes: ends.map((end) => ({ type: "line", x0: end, x1: end, yref: "paper", y0: 0, y1: 1, line: { width: 0.6, color: "rgba(128,128,128,0.5)" }, layer: "below" })),
    }];
  }

  function latencies() {
    if (!data.latencies) return;
    const made = section("latency", "Where the time goes", "How long clients take for one piece of local work, for its upload, and for both: the share of clients per second.", "Latency");
    const names = { compute_s: ["computing", "#4c86b8", "solid"], upload_s: ["uploading", "#e0a030", "solid"], latency_s: ["both", "#888888", "dash"] };
    const there = Object.keys(names).filter((name) => data.latencies[name]);
    const deadline = data.fleet && data.fleet.deadline_s;
    const end = Math.max(...there.map((name) => data.latencies[name].x.at(-1)));
    chart(made, {
      alt: `Density of latencies: ${there.map((name) => names[name][0]).join(", ")}, from 0 to ${number(end)} s.`,
      traces: there.map((name) => ({ x: data.latencies[name].x, y: data.latencies[name].y, name: names[name][0], mode: "lines", fill: name === "latency_s" ? "none" : "tozeroy", line: { color: names[name][1], dash: names[name][2] }, hovertemplate: "%{x:.1f} s" })),
      layout: {
        xaxis: { title: { text: "seconds" }, rangemode: "tozero" }, yaxis: { title: { text: "share of clients per second" }, rangemode: "tozero" },
        shapes: deadline ? Array.from({ length: Math.min(12, Math.floor(end / deadline)) }, (_, at) => ({ type: "line", x0: (at + 1) * deadline, x1: (at + 1) * deadline, yref: "paper", y0: 0, y1: 1, line: { dash: "dot", width: 1, color: "rgba(128,128,128,0.8)" } })) : [],
      },
      caption: deadline ? "Dotted: multiples of the deadline, where tiers end." : null,
    });
  }

  function participation() {
    const there = data.participation.map((rows, place) => [rows, place]).filter(([rows]) => rows.length);
    if (!there.length) return;
    const made = section("participation", "Who takes part, and how stale", "How often a client of each tier is merged in 1,000 simulated seconds, and how many versions of the model were made while it worked. Staleness is the price of not waiting. Tiers are by each contender's deadline, also where its strategy uses none, of the clients of all seeds.", "Participation");
    const pair = h("div", { class: "pair" });
    made.append(pair);
    const bars = (key, title, digits) => chart(pair, {
      alt: `${title} by tier: ${there.map(([rows, at]) => `${groups[at].label} ${rows.map((row) => `${tierName(row.tier)} ${number(row[key], digits)}`).join(", ")}`).join("; ")}.`,
      traces: there.map(([rows, at]) => ({ type: "bar", name: plain(groups[at].label), x: rows.map((row) => tierName(row.tier)), y: rows.map((row) => row[key]), marker: fill(groups[at]), hovertemplate: `%{y:.${digits}f}` })),
      layout: { barmode: "group", hovermode: "x unified", yaxis: { title: { text: title }, rangemode: "tozero" }, xaxis: tierAxis(there.map(([rows]) => rows)) }, height: 330,
    });
    bars("merged_per_1000s", "merged per client in 1,000 s", 1);
    bars("staleness", "mean staleness (versions)", 2);
    made.append(h("details", {}, h("summary", {}, "The numbers"), table("Participation by tier", [contenders, "tier", "clients", "merged per client in 1,000 s", "share of all merged", "staleness"],
      there.flatMap(([rows, at]) => rows.map((row) => [groups[at].label, tierName(row.tier), number(row.clients, 1), number(row.merged_per_1000s, 1), percent(row.share), number(row.staleness, 2)])))));
  }

  function tierName(tier) { return tier ? `tier ${tier}` : "never heard"; }

  function fairness() {
    const there = data.fairness.map((one, place) => [one, place]).filter(([one]) => one.classes.length);
    if (!there.length) return;
    const made = section("fairness", "Is it fair?", "The final model on each class of test images, and on test images mixed as the data of each tier's clients are: a model that forgets slow clients is worse on their tiers.", "Fairness");
    const pair = h("div", { class: "pair" });
    made.append(pair);
    chart(pair, {
      alt: `Accuracy by class: ${there.map(([one, at]) => `${groups[at].label} from ${percent(Math.min(...one.classes))} to ${percent(Math.max(...one.classes))}`).join(", ")}.`,
      traces: there.map(([one, at]) => ({ type: "bar", name: plain(groups[at].label), x: one.classes.map((_, label) => `${label}`), y: one.classes, marker: fill(groups[at]), hovertemplate: "%{y:.1%}" })),
      layout: { barmode: "group", hovermode: "x unified", xaxis: { type: "category", title: { text: "class" } }, yaxis: { tickformat: ".0%", rangemode: "tozero", title: { text: "accuracy" } } }, height: 330,
    });
    chart(pair, {
      alt: `Accuracy by the tier of clients: ${there.map(([one, at]) => `${groups[at].label} ${one.tiers.map((row) => `${tierName(row.tier)} ${percent(row.accuracy)}`).join(", ")}`).join("; ")}.`,
      traces: there.map(([one, at]) => ({ type: "bar", name: plain(groups[at].label), x: one.tiers.map((row) => tierName(row.tier)), y: one.tiers.map((row) => row.accuracy), marker: fill(groups[at]), hovertemplate: "%{y:.1%}" })),
      layout: { barmode: "group", hovermode: "x unified", xaxis: tierAxis(there.map(([one]) => one.tiers)), yaxis: { tickformat: ".0%", rangemode: "tozero", title: { text: "accuracy" } } }, height: 330,
    });
    made.append(table("Accuracy over clients, means over seeds", [contenders, "worst client", "a quarter below", "median", "a quarter above", "best client"],
      there.filter(([one]) => one.clients.length).map(([one, at]) => [h("span", {}, strategyName(at)), ...one.clients.map(percent)])));
  }

  function costs() {
    const targets = data.costs[0].map((row) => row.target).filter((_, place) => data.costs.some((rows) => rows[place].seconds !== null));
    if (!targets.length) return;
    const made = section("costs", "What it costs to get there", "Bytes sent by clients and joules they spend, computing and sending, until a target accuracy is reached.", "Costs");
    const pair = h("div", { class: "pair" }), numbers = h("div");
    const kinds = [["bytes", 1e-6, "uploaded (MB)"], ["joules", 1e-3, "energy (kJ)"]];
    const drawn = [];
    const pick = (target) => {
      const rows = data.costs.map((all) => all.find((row) => row.target === target));
      const there = rows.map((row, at) => [row, at]).filter(([row]) => row.seconds !== null);
      kinds.forEach(([key, scale, title], place) => {
        const traces = [{
          type: "bar", x: there.map(([, at]) => plain(groups[at].label)), y: there.map(([row]) => row[key] === null ? null : row[key] * scale), marker: { color: there.map(([, at]) => groups[at].colour), pattern: { shape: there.map(([, at]) => fill(groups[at]).pattern.shape), size: 6, solidity: 0.35 } },
          error_y: { type: "data", array: there.map(([row]) => row[`${key}_half`] === null ? 0 : row[`${key}_half`] * scale), thickness: 1 }, hovertemplate: "%{y:,.1f}<extra></extra>",
        }];
        const alt = `${title} to ${percent(target)}: ${there.map(([row, at]) => `${groups[at].label} ${row[key] === null ? "unknown" : number(row[key] * scale, 1)}`).join(", ") || "nobody from every seed"}.`;
        const layout = { yaxis: { title: { text: title }, rangemode: "tozero" }, xaxis: { type: "category" } };
        if (drawn[place]) drawn[place].update(traces, layout, alt);
        else drawn.push(chart(pair, { alt, traces, layout, height: 300 }));
      });
      numbers.replaceChildren(table(`To ${percent(target)}`, [contenders, "seconds", "uploads", "MB uploaded", "kJ", "seeds that arrive"], rows.map((row, at) => [
        h("span", {}, strategyName(at)), number(row.seconds), number(row.uploads), row.bytes === null ? "–" : number(row.bytes * 1e-6, 1), row.joules === null ? "–" : number(row.joules * 1e-3, 1), `${row.seeds} of ${groups[at].seeds}`])));
    };
    const ordered = [...targets].reverse();
    made.append(pair, numbers);
    pair.before(h("div", { class: "controls" }, "To ", choice("Target accuracy", ordered.map((target) => [target, `${(100 * target).toFixed(0)} %`]), pick)));
  }

  function settings() {
    const again = data.command ? "The same command on the same kind of machine gives the same bytes. Whoever has only this page saves the settings below as config.toml and names that file." : "Real clients do not come twice: these are the settings of the run.";
    const made = section("settings", "Settings, and how to repeat this", again, "Settings");
    if (data.command) made.append(quoted(data.command, "the command"));
    made.append(h("h3", {}, several ? `All settings, those of ${groups[0].label}` : "All settings"), quoted(data.settings, "the settings"));
  }

  [whatWasRun, verdict, accuracy, explorer, schedule, latencies, participation, fairness, costs, settings].forEach((draw) => draw());
})();
