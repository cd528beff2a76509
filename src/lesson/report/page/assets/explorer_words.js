"use strict";
/* Text of the explorer: which deadline to start with and why, the effect of the chosen one, cards and tables. */
const ExplorerWords = (() => {
  const { h, number } = Page;
  const MAX_TIERS = 12;
  const ROUNDING = 1e-9; // allowance for floating-point errors, as in 100 * 0.285 = 28.499999999999996

  /** A number of about three digits. */
  function fine(value) {
    if (value === null || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 0.01 || size >= 1e12)) return String(Number(value.toPrecision(3)));
    return size >= 100 ? number(value) : number(value, size >= 10 ? 1 : 2).replace(/\.?0+$/, "");
  }

  function seconds(value) {
    return value === Infinity ? "no deadline" : `${fine(value)} s`;
  }

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

  /** Which deadline to start with, and why. */
  function answer({ fleet, advice, fedavg }, look) {
    const count = fleet.name.length,
      left = Math.round(count * (1 - look.served_by_fedcs));
    return [
      h("strong", {}, `Start with ${seconds(advice.proposed_s)}. `),
      `${reason(advice)} LESSON then aggregates ${fine(look.updates_per_1000s)} updates per 1,000 s, ` +
        `with a mean staleness of ${fine(look.staleness)} versions. A shorter deadline gives more but staler updates, a longer one fewer but fresher ones. ` +
        `FedCS would never select ${number(left)} of ${number(count)} clients. FedAvg would wait ${seconds(fedavg.round_s)} for the slowest client in every round ` +
        `and aggregate ${fine(fedavg.updates_per_1000s)} updates per 1,000 s.`,
    ];
  }

  /** Why a deadline is proposed, and the share of updates on time if latencies vary. Only `lesson plan` simulates it. */
  function reason({ min_on_time = null, on_time = null }) {
    const why =
      min_on_time === null
        ? "The fastest quarter of the clients meet this deadline with 10 % to spare."
        : `Of the deadlines tried, it is the shortest at which at least ${fine(100 * min_on_time)} % of the updates arrive on time.`;
    if (on_time === null) return why;
    return `${why} In a simulation with varying latencies, ${shareRoundedDown(on_time)} of the updates arrived on time at this deadline.`;
  }

  /** The effect of the chosen deadline. */
  function now({ fleet, deadline_s, look }) {
    const [first] = look.tiers,
      count = fleet.name.length,
      met = first.tier === 1 ? first.clients.length : 0;
    const told = [];
    if (look.promoted !== null) {
      told.push(
        `No client meets ${seconds(deadline_s)}: the fastest client, ${fleet.name[look.promoted]}, is promoted to tier 1, ` +
          `although it needs ${seconds(fleet.latency_s[look.promoted])}.`,
      );
    } else if (!met) {
      told.push(
        `No client meets ${seconds(deadline_s)}: the first updates are aggregated after ${number(first.tier)} rounds, ` +
          "and FedCS has no clients to select.",
      );
    } else if (look.num_tiers === 1) {
      told.push(
        deadline_s === Infinity
          ? "Without a deadline, LESSON is FedAvg."
          : `Every client that can be reached meets ${seconds(deadline_s)}: LESSON is FedAvg here.`,
      );
    } else {
      told.push(
        `At ${seconds(deadline_s)}, ${number(met)} of ${number(count)} clients upload in every round; ` +
          `the slowest tier uploads every ${number(look.tiers.at(-1).tier)} rounds.`,
      );
    }
    if (look.unreachable)
      told.push(`${number(look.unreachable)} of ${number(count)} clients are unreachable and in no tier.`);
    return told.join(" ");
  }

  function cards({ look, fedavg }) {
    const card = (value, label, note) =>
      h(
        "div",
        { class: "card" },
        h("div", { class: "value" }, value),
        h("div", { class: "label" }, label),
        h("div", { class: "note quiet" }, note),
      );
    const known = look.joules_per_1000s !== null;
    return [
      card(seconds(look.round_s), "round length", `FedAvg ${seconds(fedavg.round_s)}`),
      card(fine(look.updates_per_1000s), "updates per 1,000 s", `FedAvg ${fine(fedavg.updates_per_1000s)}`),
      card(fine(look.staleness), "mean staleness (versions)", "FedAvg 0"),
      card(share(look.served), "of the clients served", `FedCS ${share(look.served_by_fedcs)}`),
      known
        ? card(`${fine(look.joules_per_1000s)} J`, "energy per 1,000 s", `FedAvg ${fine(fedavg.joules_per_1000s)} J`)
        : null,
    ].filter(Boolean);
  }

  function comparison({ look, fedavg, fedcs }) {
    const rows = [
      ["round length", "round_s", seconds],
      ["updates per 1,000 s", "updates_per_1000s", fine],
      ["mean staleness (versions)", "staleness", fine],
      ["clients served", "served", share],
      ["energy per update (J)", "joules_per_update", fine],
      ["energy per 1,000 s (J)", "joules_per_1000s", fine],
    ];
    const known = rows.filter(([, key]) => fedavg[key] !== null);
    return Page.table(
      "Long-run averages at this deadline",
      ["", "LESSON", "FedAvg", "FedCS"],
      known.map(([label, key, words]) => [label, ...[look, fedavg, fedcs].map((one) => (one ? words(one[key]) : "–"))]),
    );
  }

  function tiers({ fleet, look, colors }) {
    const shown = look.tiers.slice(0, MAX_TIERS),
      hidden = look.num_tiers - shown.length;
    const rows = shown.map(({ tier, clients }, place) => {
      const latencies = clients.map((client) => look.latency_s[client]);
      const [low, high] = [Tiers.smallest(latencies), Tiers.slowest(latencies)].map(fine);
      return [
        h("span", {}, Page.swatch(colors[place]), number(tier)),
        number(clients.length),
        share(clients.length / fleet.name.length),
        low === high ? low : `${low} – ${high}`,
        tier === 1 ? "round" : `${number(tier)} rounds`,
      ];
    });
    const table = Page.table(
      "Tiers and how often they upload",
      ["tier", "clients", "share", "latency (s)", "uploads every"],
      rows,
    );
    const more = `… and ${number(hidden)} slower ${hidden === 1 ? "tier" : "tiers"}, up to tier ${number(look.tiers.at(-1).tier)}`;
    return hidden > 0 ? [table, h("p", { class: "quiet" }, more)] : [table];
  }

  return { fine, seconds, share, answer, now, cards, comparison, tiers };
})();
