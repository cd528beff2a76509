"use strict";
/* Text of the explorer: which deadline to start with and why, the effect of the chosen one, cards and tables. */
window.ExplorerWords = (() => {
  const { h, number, fine, seconds } = Page;
  const MAX_TIERS = 12;
  const ROUNDING = 1e-9; // allowance for floating-point errors, as in 100 * 0.285 = 28.499999999999996

  /** A share in whole percent, rounded half up as in the tables of `lesson plan`. */
  function share(value) {
    if (value > 0 && value < 0.005 * (1 - ROUNDING)) return "<1 %";
    if (value >= 0.995 * (1 - ROUNDING) && value < 1) return ">99 %";
    return `${number(Math.floor(100 * value + 0.5 + ROUNDING))} %`;
  }

  /** A share rounded down to whole percent, so that it never seems to reach a bound that it misses. */
  function shareRoundedDown(value) {
    return value > 0 && value < 0.01 * (1 - ROUNDING) ? "<1 %" : `${number(Math.floor(100 * value + ROUNDING))} %`;
  }

  /** Which deadline to start with, and why; `row` is that deadline. */
  function answer({ fleet, advice, fedavg }, row) {
    const count = fleet.name.length;
    const left = Math.round(count * (1 - row.served_by_fedcs));
    return [
      h("strong", {}, `Start with ${seconds(advice.proposed_s)}. `),
      `${reason(advice)} LESSON then aggregates ${fine(row.updates_per_1000s)} updates per 1,000 s, ` +
        `with a mean staleness of ${fine(row.staleness)}. A shorter deadline gives more but staler updates, ` +
        `a longer one fewer but fresher ones. FedCS would never select ${number(left)} of ${number(count)} clients. ` +
        `FedAvg would wait ${seconds(fedavg.round_s)} for the slowest client in every round ` +
        `and aggregate ${fine(fedavg.updates_per_1000s)} updates per 1,000 s.`,
    ];
  }

  /** Why a deadline is proposed, and the share of updates on time if latencies vary. */
  function reason({ min_on_time, on_time }) {
    const why =
      min_on_time === null
        ? "The fastest quarter of the clients meet this deadline with 10 % to spare."
        : `Of the deadlines tried, it is the shortest at which at least ${fine(100 * min_on_time)} % of the updates arrive on time.`;
    if (on_time === null) return why;
    return `${why} In a simulation with varying latencies, ${shareRoundedDown(on_time)} of the updates arrived on time at this deadline.`;
  }

  /** The effect of the chosen deadline. */
  function now({ fleet, row }) {
    const count = fleet.name.length;
    const lost = count - row.num_served;
    const unreachable = lost
      ? ` ${number(lost)} of ${number(count)} clients are unreachable and belong to no tier.`
      : "";
    return effect(fleet, row) + unreachable;
  }

  function effect(fleet, { deadline_s, promoted, tiers }) {
    const [first] = tiers;
    const last = tiers.at(-1);
    if (promoted)
      return (
        `No client meets the deadline of ${seconds(deadline_s)}: the fastest client, ${fleet.name[0]}, is promoted to tier 1, ` +
        `although it needs ${seconds(fleet.latency_s[0])}.`
      );
    if (first.tier > 1)
      return (
        `No client meets the deadline of ${seconds(deadline_s)}: the first updates are aggregated after ${number(first.tier)} rounds, ` +
        "and FedCS cannot select any client."
      );
    if (deadline_s === Infinity) return "Without a deadline, LESSON is the same as FedAvg.";
    if (first === last)
      return `All reachable clients meet the deadline of ${seconds(deadline_s)}, so LESSON is the same as FedAvg.`;
    return (
      `At ${seconds(deadline_s)}, ${number(first.count)} of ${number(fleet.name.length)} clients upload in every round; ` +
      `the slowest tier uploads every ${number(last.tier)} rounds.`
    );
  }

  function joulesPer1000s(row) {
    return row.joules_per_update === null ? null : row.joules_per_update * row.updates_per_1000s;
  }

  function cards({ row, fedavg }) {
    const joules = joulesPer1000s(row);
    return Page.cards([
      [seconds(row.round_s), "round length", `FedAvg ${seconds(fedavg.round_s)}`],
      [fine(row.updates_per_1000s), "updates per 1,000 s", `FedAvg ${fine(fedavg.updates_per_1000s)}`],
      [fine(row.staleness), "mean staleness (versions)", "FedAvg 0"],
      [share(row.served), "of the clients served", `FedCS ${share(row.served_by_fedcs)}`],
      ...(joules === null
        ? []
        : [[`${fine(joules)} J`, "energy per 1,000 s", `FedAvg ${fine(joulesPer1000s(fedavg))} J`]]),
    ]);
  }

  function comparison({ row, fedavg }) {
    const lines = [
      ["round length", (one) => seconds(one.round_s)],
      ["updates per 1,000 s", (one) => fine(one.updates_per_1000s)],
      ["mean staleness (versions)", (one) => fine(one.staleness)],
      ["clients served", (one) => share(one.served)],
      ["energy per update (J)", (one) => fine(one.joules_per_update)],
      ["energy per 1,000 s (J)", (one) => fine(joulesPer1000s(one))],
    ];
    return Page.table(
      "Long-run averages at this deadline",
      ["", "LESSON", "FedAvg", "FedCS"],
      lines
        .slice(0, fedavg.joules_per_update === null ? 4 : 6)
        .map(([label, words]) => [label, ...[row, fedavg, row.fedcs].map((one) => (one ? words(one) : "–"))]),
    );
  }

  function tiers({ fleet, row, colors }) {
    const hidden = row.tiers.length - MAX_TIERS;
    const lines = row.tiers.slice(0, MAX_TIERS).map(({ tier, count, fastest_s, slowest_s }, place) => {
      const [low, high] = [fine(fastest_s), fine(slowest_s)];
      return [
        h("span", {}, Page.swatch(colors[place]), number(tier)),
        number(count),
        share(count / fleet.name.length),
        low === high ? low : `${low} – ${high}`,
        tier === 1 ? "round" : `${number(tier)} rounds`,
      ];
    });
    const headings = ["tier", "clients", "share", "latency (s)", "uploads every"];
    const table = Page.table("Tiers and how often they upload", headings, lines);
    const more = `… and ${number(hidden)} slower ${hidden === 1 ? "tier" : "tiers"}, up to tier ${number(row.tiers.at(-1).tier)}`;
    return hidden > 0 ? [table, h("p", { class: "quiet" }, more)] : [table];
  }

  return { answer, now, cards, comparison, tiers };
})();
