"use strict";
/* The page of a study: what was run and what came of it. */
(() => {
  const { data, h, section, table, quoted } = Page;
  const { groups, several, contenders, strategyName, groupOf } = Looks;
  const IDEA = [
    "Federated learning trains one model on data that stays with many clients: each takes a step on its own data and sends the result to a server, which averages. Clients differ. Waiting for the slowest in every round (FedAvg) is slow; leaving the slow ones out (FedCS) loses what only they know.",
    "LESSON does neither. A deadline τ divides time into rounds. A client that needs up to one deadline is in tier 1 and uploads in every round; one that needs up to two is in tier 2 and uploads in every second round; and so on. The server merges whoever is due. Slow clients take larger steps, in proportion to their tier, so that they count as much as fast ones. The price is staleness: what a slow client sends was made from an older model.",
    "Everything here is measured in simulated time: computing and radio of each client follow a model (or measurements), and every strategy runs on the same clock.",
  ];

  function whatWasRun() {
    const made = section("what", "What was run", data.what, "Run");
    if (data.notes.length)
      made.append(
        h(
          "ul",
          { class: "quiet" },
          data.notes.map((note) => h("li", {}, note)),
        ),
      );
    const failed = Object.entries(data.failures);
    if (failed.length)
      made.append(
        h(
          "p",
          { role: "note" },
          `${failed.length} of the runs failed: `,
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
        h("summary", {}, "How LESSON works, in three paragraphs"),
        IDEA.map((text) => h("p", {}, text)),
      ),
    );
  }

  function verdict() {
    const made = section(
      "verdict",
      "The verdict",
      groups.some((group) => group.seeds > 1)
        ? "Means over seeds, ± half a 95 % interval by Student's t; with two seeds, both values. Accuracy is the mean of the last ten evaluations, at most the last quarter of the run. Time to a target: first evaluation at which the mean of three consecutive evaluations reaches it, shown if every seed reaches it. A card names a winner if its paired differences over seeds, at least three, have a 95 % interval without 0."
        : null,
      "Verdict",
    );
    made.append(
      h(
        "div",
        { class: "cards" },
        data.verdict.cards.map((card) => {
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
    made.append(
      table(
        "Every contender",
        [contenders, ...data.verdict.columns],
        data.verdict.rows.map(([label, ...rest]) => [
          groupOf(label) >= 0 ? h("span", {}, strategyName(groupOf(label))) : label,
          ...rest,
        ]),
      ),
    );
  }

  function explorer() {
    if (!data.fleet) return;
    const made = section(
      "deadline",
      "The clients and their deadline",
      "Where the clients are, around the base station, and what another deadline would do to them. Move τ and everything follows; nothing is trained for it.",
      "Deadline",
    );
    Explorer.mount(made, data.fleet);
  }

  function settings() {
    const again = data.command
      ? "The same command on the same kind of machine gives the same bytes. Whoever has only this page saves the settings below as config.toml and names that file."
      : "Real clients do not come twice: these are the settings of the run.";
    const made = section("settings", "Settings, and how to repeat this", again, "Settings");
    if (data.command) made.append(quoted(data.command, "the command"));
    made.append(
      h("h3", {}, several ? `All settings, those of ${groups[0].label}` : "All settings"),
      quoted(data.settings, "the settings"),
    );
  }

  [
    whatWasRun,
    verdict,
    Course.accuracy,
    explorer,
    Course.schedule,
    Course.latencies,
    Clients.participation,
    Clients.fairness,
    Clients.costs,
    settings,
  ].forEach((draw) => draw());
})();
