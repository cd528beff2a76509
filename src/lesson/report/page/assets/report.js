"use strict";
/* The page of a study: what was run, and the results. */
(() => {
  const { data, h, list, section, sections, sortable, quoted, swatch } = Page;
  const { groups, groupOf, metric } = Looks;
  const IDEA = [
    "Federated learning trains one model on data that stays on many clients: each client trains on its own data and uploads the result to a server, which aggregates the results. Clients are unequal. Waiting for the slowest client in every round (FedAvg) takes a long time; leaving out slow clients (FedCS) loses their data.",
    "LESSON does neither. A deadline τ divides time into rounds. A client that needs at most one deadline is in tier 1 and uploads every round; one that needs up to two is in tier 2 and uploads every second round; and so on. At the end of a round the server aggregates the updates that are due. Slow clients use a larger step size, in proportion to their tier, to make up for uploading less often. The price is staleness: the update of a slow client starts from an older model.",
    {
      "simulated time":
        "All times are simulated: the compute and upload times of each client come from a model or from measurements, and all strategies run on the same clock.",
      "elapsed time":
        "All times are measured on real clients. The latency of a client includes the overhead of the connection, and time during which the server was stopped does not count.",
      time: "Some of these runs are simulated; the times of the others are measured on real clients.",
    }[data.time],
  ];

  function whatWasRun() {
    const made = section("what", "What was run", data.what, "Run");
    if (data.notes.length) made.append(list(data.notes, { class: "quiet" }));
    const failed = Object.entries(data.failures);
    if (failed.length)
      made.append(
        h(
          "p",
          { role: "note" },
          `${failed.length} ${failed.length === 1 ? "run is" : "runs are"} not included: `,
          failed
            .slice(0, 5)
            .map(([name, why]) => `${name} (${why})`)
            .join("; "),
        ),
      );
    made.append(
      h(
        "details",
        { open: true },
        h("summary", {}, "How LESSON works"),
        IDEA.map((text) => h("p", {}, text)),
      ),
    );
  }

  function verdict() {
    const made = section("verdict", "Results");
    made.append(
      h(
        "div",
        { class: "cards" },
        data.cards.map((card) => {
          const place = groupOf(card.who);
          return h(
            "div",
            { class: "card swatched", style: place >= 0 ? `--swatch:${groups[place].color}` : null },
            h("div", { class: "label" }, card.label),
            h("div", { class: "value" }, card.value),
            h("div", {}, card.who),
            h("div", { class: "note quiet" }, card.note),
          );
        }),
      ),
    );
    const caption = `${data.table.title}. Click a heading to sort; click a name to see its settings and commands.`;
    const rules = [
      "Numbers are means over seeds with 95 % confidence intervals by Student's t; with two seeds, both values are shown.",
      `${metric.title} at the end is the mean of the last ten evaluations, or of the last quarter of all evaluations if that is fewer. The time to a target is that of the first evaluation at which the mean of three consecutive evaluations reaches it.`,
      groups.length > 1
        ? "A card names a single winner only if there are at least three seeds and, for each of the others, the 95 % confidence interval of the paired differences excludes 0. If a target is not always reached, the interval is that of the median by the sign test, which takes at least six seeds."
        : null,
    ];
    made.append(
      sortable(caption, data.table, { first, details }),
      h(
        "details",
        {},
        h("summary", {}, "How to read the results"),
        rules.map((text) => text && h("p", {}, text)),
      ),
    );
  }

  function first(row, text) {
    const { color } = data.rows[row];
    return color ? [swatch(color), text] : text;
  }

  /** The settings of a row that differ from the preset, and the commands that repeat its runs. */
  function details(row) {
    const { command, settings, seed } = data.rows[row],
      name = data.table.rows[row][0][0];
    return h(
      "div",
      { class: "inside" },
      h("p", {}, `Settings that differ from the preset (run with seed ${seed}), as a settings file config.toml:`),
      quoted(settings, `the settings of ${name}`),
      command
        ? [
            h("p", {}, "Commands that repeat the runs, bit for bit on the same kind of machine:"),
            quoted(command, `the command of ${name}`),
          ]
        : h("p", {}, "Runs on real clients cannot be repeated exactly."),
    );
  }

  function explorer() {
    if (!data.fleet) return;
    const made = section(
      "deadline",
      "Clients and deadline",
      "This section shows the clients and the effect of other deadlines. Move τ to see what changes; this needs no training.",
      "Deadline",
    );
    Explorer.mount(made, data.fleet);
  }

  const further = () => sections(data.sections);
  const parts = [
    whatWasRun,
    further,
    verdict,
    Course.curves,
    explorer,
    Course.schedule,
    Course.latencies,
    Clients.participation,
    Clients.fairness,
    Clients.costs,
    () => sections(data.appendix),
  ];
  for (const draw of groups.length ? parts : [further]) draw();
})();
