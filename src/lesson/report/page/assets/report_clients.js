"use strict";
/* Charts of participation, fairness and costs. */
const Clients = (() => {
  const { data, h, section, table, chart, canvas, choice, number, plain } = Page;
  const { groups, contenders, strategyName, tierName, tierAxis, fill, percent, metric } = Looks;

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
      chart(pair, {
        alt: `${title} by tier: ${there.map(([rows, at]) => `${groups[at].label} ${rows.map((row) => `${tierName(row.tier)} ${number(row[key], digits)}`).join(", ")}`).join("; ")}.`,
        traces: there.map(([rows, at]) => ({
          type: "bar",
          name: plain(groups[at].label),
          x: rows.map((row) => tierName(row.tier)),
          y: rows.map((row) => row[key]),
          marker: fill(groups[at]),
          hovertemplate: `%{y:.${digits}f}`,
        })),
        layout: {
          barmode: "group",
          hovermode: "x unified",
          yaxis: { title: { text: title }, rangemode: "tozero" },
          xaxis: tierAxis(there.map(([rows]) => rows)),
        },
        height: 330,
        zoom: false,
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
    chart(pair, {
      alt: `Accuracy by class: ${there.map(([one, at]) => `${groups[at].label} from ${percent(Math.min(...one.classes))} to ${percent(Math.max(...one.classes))}`).join(", ")}.`,
      traces: there.map(([one, at]) => ({
        type: "bar",
        name: plain(groups[at].label),
        x: one.classes.map((_, label) => plain(one.names ? one.names[label] : `${label}`)),
        y: one.classes,
        marker: fill(groups[at]),
        hovertemplate: "%{y:.1%}",
      })),
      layout: {
        barmode: "group",
        hovermode: "x unified",
        xaxis: { type: "category", title: { text: "class" } },
        yaxis: { tickformat: ".0%", rangemode: "tozero", title: { text: "accuracy" } },
      },
      height: 330,
      zoom: false,
    });
    chart(pair, {
      alt: `Accuracy by tier: ${there.map(([one, at]) => `${groups[at].label} ${one.tiers.map((row) => `${tierName(row.tier)} ${percent(row.accuracy)}`).join(", ")}`).join("; ")}.`,
      traces: there.map(([one, at]) => ({
        type: "bar",
        name: plain(groups[at].label),
        x: one.tiers.map((row) => tierName(row.tier)),
        y: one.tiers.map((row) => row.accuracy),
        marker: fill(groups[at]),
        hovertemplate: "%{y:.1%}",
      })),
      layout: {
        barmode: "group",
        hovermode: "x unified",
        xaxis: tierAxis(there.map(([one]) => one.tiers)),
        yaxis: { tickformat: ".0%", rangemode: "tozero", title: { text: "accuracy" } },
      },
      height: 330,
      zoom: false,
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
    const kinds = [
      ["bytes", 1e-6, "uploaded (MB)"],
      ...(measured ? [["joules", 1e-3, "energy (kJ)"]] : []),
    ];
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
          [contenders, "time (s)", "uploads", "uploaded (MB)", ...(measured ? ["energy (kJ)"] : []), "seeds that reach it"],
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
