"use strict";
/* The page of `lesson replay`. */
(() => {
  const { data, h, section, sortable, cards, list, chart, quoted, number, plain } = Page;
  const COLORS = { recorded: "#7f7f7f", best: "#0072b2", other: "#56b4e9" };
  const possible = data.outcomes.filter((outcome) => !outcome.problem);

  function advice() {
    const made = section("advice", "Recommendation");
    made.append(h("p", {}, h("strong", {}, data.advice.sentence)));
    const run = data.recording;
    const numbers = [
      [`${run.clients}`, "clients", `${run.rounds} rounds of ${run.strategy}`],
      [`${number(run.duration_s / 60, 1)} min`, "recorded", run.began ? `from ${run.began}` : ""],
      [`${number(run.overhead_s, 1)} s`, "between two rounds", "median, also used in the simulations"],
    ];
    if (data.advice.gain)
      numbers.unshift([
        `× ${number(data.advice.gain.mean, 2)}`,
        "updates per hour",
        `${number(data.advice.gain.low, 2)} to ${number(data.advice.gain.high, 2)}, compared with ${data.advice.compared_with}`,
      ]);
    made.append(cards(numbers));
    if (data.advice.snippet) {
      made.append(h("h3", {}, "Use it on Flower"), quoted(data.advice.snippet, "the code for a Flower app"));
      made.append(
        h(
          "p",
          { class: "quiet" },
          'Clients must read their step size from the message: message.content["config"]["lr"].',
        ),
      );
    }
  }

  function bars() {
    const made = section(
      "strategies",
      "What other strategies would have done",
      "Other strategies, simulated on the clients of the recording. Bars show means, and error bars the middle 95 % of the simulations, which includes the uncertainty due to the length of the recording. Strategies are ranked by plain updates per hour, which compares schedules, not models.",
    );
    const rows = [
      {
        label: `recorded: ${data.recording.strategy}`,
        values: { updates_per_h: { mean: data.reality.updates_per_h } },
      },
      ...possible,
    ].filter((row) => row.values.updates_per_h.mean !== null);
    const error = (end) =>
      rows.map(({ values: { updates_per_h: one } }) => (one.low === undefined ? 0 : Math.abs(one[end] - one.mean)));
    chart(made, {
      alt: `Bars: updates per hour. ${rows.map((row) => `${row.label}: ${number(row.values.updates_per_h.mean)}`).join("; ")}.`,
      height: 90 + 44 * rows.length,
      zoom: false,
      traces: [
        {
          type: "bar",
          orientation: "h",
          y: rows.map((row) => plain(row.label)),
          x: rows.map((row) => row.values.updates_per_h.mean),
          error_x: { type: "data", array: error("high"), arrayminus: error("low"), thickness: 1.5 },
          marker: {
            color: rows.map((row, place) =>
              row.label === data.advice.label
                ? COLORS.best
                : place === 0 && row.label.startsWith("recorded")
                  ? COLORS.recorded
                  : COLORS.other,
            ),
          },
          hovertemplate: "%{y}: %{x:.4g}<extra></extra>",
        },
      ],
      layout: {
        xaxis: { title: { text: "updates per hour" }, rangemode: "tozero" },
        yaxis: { autorange: "reversed" },
        showlegend: false,
      },
    });
    made.append(
      sortable(data.tables.strategies.title, data.tables.strategies),
      h(
        "p",
        { class: "quiet" },
        `Values are means over simulations, with the middle 95 % in parentheses. On time: share of updates that arrive by the round in which they are due. Wasted: share of local trainings that failed or whose update was not aggregated. Not served: clients whose updates are aggregated in less than ${number(100 * data.min_served)} % of the simulations, or never in the recorded run.`,
      ),
    );
  }

  function trained() {
    if (!data.trained) return;
    section(
      "trained",
      "Accuracy",
      "Models trained on the simulated clients; all runs use the same draw of their times.",
    ).append(sortable(data.trained.title, data.trained));
  }

  function clients() {
    const made = section(
      "clients",
      "Clients",
      "Recorded latencies, from each request to its reply. The simulations draw a client's latencies from these.",
    );
    const rows = data.clients.filter((client) => client.latency_s.length);
    chart(made, {
      alt: `Recorded latencies of ${rows.length} clients; medians from ${number(rows[0].median_s, 1)} s to ${number(rows[rows.length - 1].median_s, 1)} s.`,
      height: 380,
      traces: [
        {
          type: "scatter",
          mode: "markers",
          x: rows.flatMap((client) => client.latency_s.map(() => plain(client.name))),
          y: rows.flatMap((client) => client.latency_s),
          marker: { color: COLORS.other, size: 6, opacity: 0.6 },
          name: "recorded",
          hovertemplate: "%{x}: %{y:.4g} s<extra></extra>",
        },
        {
          type: "scatter",
          mode: "markers",
          x: rows.map((client) => plain(client.name)),
          y: rows.map((client) => client.median_s),
          marker: { color: COLORS.best, size: 12, symbol: "line-ew-open", line: { width: 3 } },
          name: "median",
          hovertemplate: "%{x}: median %{y:.4g} s<extra></extra>",
        },
      ],
      layout: {
        xaxis: { type: "category" },
        yaxis: { title: { text: "latency (s)" }, type: spread(rows) > 50 ? "log" : "linear", rangemode: "tozero" },
      },
      numbers: sortable(data.tables.clients.title, data.tables.clients),
    });
  }

  function spread(rows) {
    const all = rows.flatMap((client) => client.latency_s);
    return Math.max(...all) / Math.min(...all);
  }

  function notes() {
    const made = section("notes", "Notes");
    const lines = [
      ...data.notes,
      `Each simulation lasts ${number(data.horizon_s)} s. It assumes that a client's latency does not depend on how many others train at the same time. If clients share a network or a machine, a strategy that starts fewer of them at once may be faster than predicted.`,
    ];
    made.append(list(lines));
    if (data.command) made.append(quoted(data.command, "the command"));
  }

  for (const draw of [advice, bars, trained, clients, notes]) draw();
})();
