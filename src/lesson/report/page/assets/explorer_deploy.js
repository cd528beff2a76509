"use strict";
/* What the explorer exports: code for a Flower app and the command of a simulated run with the chosen deadline. */
const ExplorerDeploy = (() => {
  const { h, number } = Page;
  const { seconds } = ExplorerWords;
  const STRATEGIES = [
    ["lesson", "LESSON"],
    ["fedcs", "FedCS"],
    ["fedavg", "FedAvg"],
  ];

  /** Put the box into a section. */
  function mount(section) {
    const told = h("div", {});
    let state = null,
      strategy = "lesson";
    const choice = Page.choice("Strategy", STRATEGIES, (name) => {
      strategy = name;
      if (state) draw();
    });
    section.append(h("h3", { id: "deploy" }, "Use it on Flower"), choice, told);

    function draw() {
      const code = codeOf(state, strategy);
      if (code === null) {
        told.replaceChildren(h("p", {}, `FedCS cannot run: ${whyNot(state)}.`));
        return;
      }
      told.replaceChildren(
        h("p", {}, "In the server app, use this strategy:"),
        Page.quoted(code, "the code for a Flower app"),
        strategy === "lesson"
          ? h(
              "p",
              {},
              "In the client app, read the step size from the message, ",
              h("code", {}, 'message.content["config"]["lr"]'),
              ": it depends on the tier.",
            )
          : null,
        ...replayWords(state),
        ...commandWords(state, strategy),
      );
    }

    function show(newState) {
      state = newState;
      draw();
    }
    return { show };
  }

  /** Python code that makes the strategy in a server app; null if the strategy cannot run. */
  function codeOf({ look, fedcs, fleet, deadline_s }, strategy) {
    const count = number(fleet.name.length),
      deadline = pythonFloat(deadline_s);
    if (strategy === "fedavg" || (strategy === "lesson" && deadline_s === Infinity))
      return (
        "from flwr.serverapp.strategy import FedAvg\n\n" +
        "strategy = FedAvg()  # waits for all clients in every round\n"
      );
    if (strategy === "fedcs") {
      if (!fedcs) return null;
      const met = number(look.tiers[0].clients.length);
      return (
        "from lesson import FedCS\nfrom lesson.flower import LessonStrategy\n\n" +
        `# ${met} of ${count} clients take part; the others are never selected.\n` +
        `strategy = LessonStrategy(deadline_s=${deadline}, strategy=FedCS(${deadline}))\n`
      );
    }
    const met = number(look.tiers[0].tier === 1 ? look.tiers[0].clients.length : 0),
      last = look.tiers.at(-1).tier;
    const others = last === 1 ? "" : `, the slowest every ${number(last)} rounds`;
    return (
      "from lesson.flower import LessonStrategy\n\n" +
      `# ${met} of ${count} clients upload in every round${others}.\n` +
      `strategy = LessonStrategy(deadline_s=${deadline})\n`
    );
  }

  function whyNot({ deadline_s }) {
    return deadline_s === Infinity ? "it needs a deadline" : `no client meets ${seconds(deadline_s)}`;
  }

  /** The command of a simulated run on these clients, and the file of latencies that it needs. */
  function commandWords(state, strategy) {
    const { fleet, numClients, deadline_s } = state;
    const isWhole = fleet.name.length === numClients;
    if (state.flags === null && !isWhole) return [];
    const link = h(
      "a",
      { download: "fleet.csv", href: `data:text/csv;charset=utf-8,${encodeURIComponent(FleetCsv.write(fleet))}` },
      "these latencies as fleet.csv",
    );
    const words =
      state.flags === null
        ? ["Save ", link, " to try it in a simulation first:"]
        : ["To try it in a simulation first:"];
    const command = [
      "lesson run",
      state.flags ?? "--latencies fleet.csv",
      `--strategy ${strategy}`,
      `--deadline ${deadline_s === Infinity ? "inf" : deadline_s}`,
    ];
    return [h("p", {}, ...words), Page.quoted(command.filter(Boolean).join(" "), "the command")];
  }

  /** The command that simulates strategies with the varying latencies of a recording; nothing for other fleets. */
  function replayWords({ recording, deadline_s }) {
    if (recording === null || deadline_s === Infinity) return [];
    const strategies = STRATEGIES.map(([name]) => name).join(",");
    const command = `lesson replay ${shellWord(recording)} --strategies ${strategies} --deadline ${deadline_s}`;
    return [
      h("p", {}, "To simulate these strategies with latencies that vary as recorded:"),
      Page.quoted(command, "the command of the replay"),
    ];
  }

  /** A number as Python writes a float. */
  function pythonFloat(value) {
    const text = String(value);
    return /^\d+$/.test(text) ? `${text}.0` : text;
  }

  /** A word of a shell command, in quotes if necessary. */
  function shellWord(text) {
    return /^[\w.\/=:+,@%-]+$/.test(text) && !text.startsWith("-") ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
  }

  return { mount, shellWord };
})();
