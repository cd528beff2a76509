"use strict";
/* What the explorer exports: code for a Flower app and commands that simulate the chosen deadline. */
window.ExplorerDeploy = (() => {
  const { h, number, seconds } = Page;
  const STRATEGIES = [
    ["lesson", "LESSON"],
    ["fedcs", "FedCS"],
    ["fedavg", "FedAvg"],
  ];

  /** Put the box into a section. */
  function mount(section) {
    const output = h("div");
    let state = null;
    let strategy = "lesson";
    const choice = Page.choice("Strategy", STRATEGIES, (name) => {
      strategy = name;
      if (state) draw();
    });
    section.append(h("h3", { id: "deploy" }, "Use it on Flower"), choice, output);

    function draw() {
      const { row, flags, recording } = state;
      if (strategy === "fedcs" && !row.fedcs) {
        const why =
          row.deadline_s === Infinity
            ? "it needs a deadline"
            : `no client meets the deadline of ${seconds(row.deadline_s)}`;
        output.replaceChildren(h("p", {}, `FedCS cannot run: ${why}.`));
        return;
      }
      output.replaceChildren(h("p", {}, "In the server app, use this strategy:"));
      output.append(Page.quoted(codeOf(state, strategy), "the code for a Flower app"));
      if (strategy === "lesson")
        output.append(
          h(
            "p",
            {},
            "In the client app, read the step size, which depends on the tier, from the message: ",
            h("code", {}, 'message.content["config"]["lr"]'),
            ".",
          ),
        );
      const deadline = row.deadline_s === Infinity ? "inf" : row.deadline_s;
      if (flags !== null)
        output.append(
          h("p", {}, "To try it in a simulation first:"),
          Page.quoted(
            ["lesson run", flags, `--strategy ${strategy} --deadline ${deadline}`].filter(Boolean).join(" "),
            "the command",
          ),
        );
      if (recording !== null && row.deadline_s !== Infinity)
        output.append(
          h("p", {}, "To simulate all three strategies with latencies that vary as recorded:"),
          Page.quoted(
            `lesson replay ${shellWord(recording)} --strategies lesson,fedcs,fedavg --deadline ${deadline}`,
            "the command of the replay",
          ),
        );
    }

    function show(newState) {
      state = newState;
      draw();
    }
    return { show };
  }

  /** Python code that makes the strategy in a server app. */
  function codeOf({ row, fleet }, strategy) {
    if (strategy === "fedavg" || row.deadline_s === Infinity)
      return (
        "from flwr.serverapp.strategy import FedAvg\n\n" +
        "strategy = FedAvg()  # waits for all clients in every round\n"
      );
    const deadline = String(row.deadline_s).replace(/^\d+$/, "$&.0");
    const [first] = row.tiers;
    const last = row.tiers.at(-1).tier;
    const met = `${number(first.tier === 1 ? first.count : 0)} of ${number(fleet.name.length)} clients`;
    if (strategy === "fedcs")
      return (
        "from lesson import FedCS\nfrom lesson.flower import LessonStrategy\n\n" +
        `# ${met} take part; the others are never selected.\n` +
        `strategy = LessonStrategy(deadline_s=${deadline}, strategy=FedCS(${deadline}))\n`
      );
    const others = last === 1 ? "" : `, the slowest every ${number(last)} rounds`;
    return (
      "from lesson.flower import LessonStrategy\n\n" +
      `# ${met} upload in every round${others}.\n` +
      `strategy = LessonStrategy(deadline_s=${deadline})\n`
    );
  }

  /** A word of a shell command, in quotes if necessary. */
  function shellWord(text) {
    return /^[\w./=:+,@%-]+$/.test(text) && !text.startsWith("-") ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
  }

  return { mount };
})();
