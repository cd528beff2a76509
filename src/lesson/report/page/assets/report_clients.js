"use strict";
/* Charts of participation, fairness and costs. */
window.Clients = (() => {
  const { data, h, section, table, chart, canvas, choice, number, plain } = Page;
  const { groups, contenders, strategyName, tierName, tierAxis, fill, percent, metric } = Looks;

  /** Bars of several configurations side by side; `of` returns the names and values of a configuration's bars. */
  function grouped(parent, there, title, { of, text, hover, xaxis, yaxis }) {
    const bars = there.map(([one, at]) => [of(one), groups[at]]);
    const described = bars.map(
      ([pairs, { label }]) => `${label} ${pairs.map(([x, y]) => `${x} ${text(y)}`).join(", ")}`,
    );
    chart(parent, {
      alt: `${title}: ${described.join("; ")}.`,
      traces: bars.map(([pairs, group]) => ({
        type: "bar",
        name: plain(group.label),
        x: pairs.map(([x]) => x),
        y: pairs.map(([, y]) => y),
        marker: fill(group),
        hovertemplate: hover,
      })),
      layout: { barmode: "group", hovermode: "x unified", xaxis, yaxis: { rangemode: "tozero", ...yaxis } },
      height: 330,
      zoom: false,
    });
  }

  function participation() {
    const there = data.participation.map((rows, place) => [rows, place]).filter(([rows]) => rows.length);
    if (!there.length) return;
    const made = section(
      "participation",
      "Participation and staleness",
      "How many of a client's updates are aggregated per 1,000 " +
        (data.time === "simulated time" ? "simulated seconds" : "seconds") +
        ", and their staleness: how many versions of the model were created between the start of an update and its aggregation. Staleness is the price of not waiting. Clients of all seeds are grouped into tiers by the deadline, even if the strategy does not use one." +
        (data.times_vary ? " Times vary during these runs; these are the tiers of the first latency estimates." : ""),
      "Participation",
    );
    const pair = h("div", { class: "pair" });
    made.append(pair);
    const bars = (key, title, digits) =>
      grouped(pair, there, title, {
        of: (rows) => rows.map((row) => [tierName(row.tier), row[key]]),
        text: (value) => number(value, digits),
        hover: `%{y:.${digits}f}`,
        xaxis: tierAxis(there.map(([rows]) => rows)),
        yaxis: { title: { text: title } },
      });
    bars("merged_per_1000s", "updates per client per 1,000 s", 1);
    bars("staleness", "mean staleness (versions)", 2);
    made.append(
      h(
        "details",
        {},
        h("summary", {}, "Show the numbers"),
        table(
          "Participation by tier",
          [contenders, "tier", "clients", "updates per client per 1,000 s", "share of all updates", "mean staleness"],
          there.flatMap(([rows, at]) =>
            rows.map((row) => [
              groups[at].label,
              tierName(row.tier),
              number(row.clients, 1),
              number(row.merged_per_1000s, 1),
              percent(row.share),
              number(row.staleness, 2),
            ]),
          ),
        ),
      ),
    );
  }

  function fairness() {
    const there = data.fairness.map((one, place) => [one, place]).filter(([one]) => one.classes.length);
    if (!there.length) return;
    const made = section(
      "fairness",
      "Fairness",
      "Accuracy of the final model on each class of the test data, and on test data with the class mix of each tier's clients. A model that neglects slow clients is less accurate on their tiers.",
      "Fairness",
    );
    const pair = h("div", { class: "pair" });
    made.append(pair);
    const shares = { text: percent, hover: "%{y:.1%}", yaxis: { tickformat: ".0%", title: { text: "accuracy" } } };
    grouped(pair, there, "Accuracy by class", {
      ...shares,
      of: (one) => one.classes.map((value, label) => [plain(one.names ? one.names[label] : `${label}`), value]),
      xaxis: { type: "category", title: { text: "class" } },
    });
    grouped(pair, there, "Accuracy by tier", {
      ...shares,
      of: (one) => one.tiers.map((row) => [tierName(row.tier), row.accuracy]),
      xaxis: tierAxis(there.map(([one]) => one.tiers)),
    });
    made.append(
      table(
        "Accuracy per client, mean over seeds",
        [contenders, "worst client", "first quartile", "median", "third quartile", "best client"],
        there
          .filter(([one]) => one.clients.length)
          .map(([one, at]) => [h("span", {}, strategyName(at)), ...one.clients.map(percent)]),
      ),
    );
  }

  function costs() {
    const targets = data.costs[0]
      .map((row) => row.target)
      .filter((_, place) => data.costs.some((rows) => rows[place].seconds !== null));
    if (!targets.length) return;
    const measured = data.costs.some((rows) => rows.some((row) => row.joules !== null));
    const made = section(
      "costs",
      `Cost of a target ${metric.name}`,
      measured
        ? `Data that clients upload, and energy that they spend on computing and transmitting, until a target ${metric.name} is reached.`
        : `Data that clients upload until a target ${metric.name} is reached. The energy they spend is unknown.`,
      "Costs",
    );
    const pair = h("div", { class: "pair" }),
      numbers = h("div");
    const kinds = [["bytes", 1e-6, "uploaded (MB)"], ...(measured ? [["joules", 1e-3, "energy (kJ)"]] : [])];
    const canvases = kinds.map(() => canvas(pair));
    const pick = (target) => {
      const rows = data.costs.map((all) => all.find((row) => row.target === target));
      const there = rows.map((row, at) => [row, at]).filter(([row]) => row.seconds !== null);
      kinds.forEach(([key, scale, title], place) => {
        const traces = [
          {
            type: "bar",
            x: there.map(([, at]) => plain(groups[at].label)),
            y: there.map(([row]) => (row[key] === null ? null : row[key] * scale)),
            marker: {
              color: there.map(([, at]) => groups[at].color),
              pattern: { shape: there.map(([, at]) => fill(groups[at]).pattern.shape), size: 6, solidity: 0.35 },
            },
            error_y: {
              type: "data",
              symmetric: false,
              array: there.map(([row]) => row[`${key}_half`] * scale),
              arrayminus: there.map(([row]) => Math.min(row[`${key}_half`], row[key]) * scale), // nothing is below 0
              thickness: 1,
            },
            hovertemplate: "%{y:,.1f}<extra></extra>",
          },
        ];
        const alt = `${title} to ${metric.target(target)}: ${there.map(([row, at]) => `${groups[at].label} ${row[key] === null ? "unknown" : number(row[key] * scale, 1)}`).join(", ") || "not reached with every seed"}.`;
        const layout = { yaxis: { title: { text: title }, rangemode: "tozero" }, xaxis: { type: "category" } };
        canvases[place]({ alt, traces, layout, height: 300, zoom: false });
      });
      numbers.replaceChildren(
        table(
          `Until ${metric.reaching(target)}`,
          [
            contenders,
            "time (s)",
            "uploads",
            "uploaded (MB)",
            ...(measured ? ["energy (kJ)"] : []),
            "seeds that reach it",
          ],
          rows.map((row, at) => [
            h("span", {}, strategyName(at)),
            number(row.seconds),
            number(row.uploads),
            row.bytes === null ? "–" : number(row.bytes * 1e-6, 1),
            ...(measured ? [row.joules === null ? "–" : number(row.joules * 1e-3, 1)] : []),
            `${row.seeds} of ${groups[at].seeds}`,
          ]),
        ),
      );
    };
    const ordered = [...targets].reverse();
    made.append(pair, numbers);
    pair.before(
      h(
        "div",
        { class: "controls" },
        `Target ${metric.name}: `,
        choice(
          `Target ${metric.name}`,
          ordered.map((target) => [target, metric.target(target)]),
          pick,
        ),
      ),
    );
  }

  return { participation, fairness, costs };
})();
