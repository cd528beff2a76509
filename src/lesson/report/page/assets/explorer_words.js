"use strict";
/* The explorer in words: which deadline to take and why, what the chosen one does, cards and tables. */
const ExplorerWords = (() => {
  const { h, number } = Page;
  const MAX_TIERS = 12;

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

  function share(value) {
    return `${number(100 * value, value > 0.99 && value < 1 ? 1 : 0)} %`;
  }

  /** Which deadline to begin with, and why. */
  function answer({ fleet, proposed_s, fedavg }, look) {
    const count = fleet.name.length,
      left = Math.round(count * (1 - look.served_by_fedcs));
    return [
      h("strong", {}, `Begin with ${seconds(proposed_s)}. `),
      `The fastest quarter of the clients meet this deadline with a tenth to spare. LESSON then merges ${fine(look.updates_per_1000s)} updates per 1000 s, ` +
        `${fine(look.staleness)} versions old on average. A shorter deadline gives more updates, but staler ones; a longer one fewer and fresher. ` +
        `FedCS would leave out ${number(left)} of ${number(count)} clients for good; FedAvg would wait ${seconds(fedavg.round_s)} for the slowest in every round ` +
        `and merge ${fine(fedavg.updates_per_1000s)} updates per 1000 s.`,
    ];
  }

  /** What the deadline chosen now does. */
  function now({ fleet, deadline_s, look }) {
    const [first] = look.tiers,
      count = fleet.name.length,
      met = first.tier === 1 ? first.clients.length : 0;
    const told = [];
    if (look.promoted !== null) {
      told.push(
        `Nobody meets ${seconds(deadline_s)}: the fastest client, ${fleet.name[look.promoted]}, is taken to, ` +
          `though it needs ${seconds(fleet.latency_s[look.promoted])}.`,
      );
    } else if (!met) {
      told.push(
        `Nobody meets ${seconds(deadline_s)}: the first updates are merged after ${number(first.tier)} rounds, ` +
          "and FedCS has nobody to ask.",
      );
    } else if (look.num_tiers === 1) {
      told.push(
        `Everybody who can be reached meets ${deadline_s === Infinity ? "it" : seconds(deadline_s)}: LESSON is FedAvg here.`,
      );
    } else {
      told.push(
        `At ${seconds(deadline_s)}, ${number(met)} of ${number(count)} clients upload in every round; ` +
          `the slowest tier does in every ${number(look.tiers.at(-1).tier)} rounds.`,
      );
    }
    if (look.unreachable)
      told.push(`${number(look.unreachable)} of ${number(count)} clients cannot be reached and are in no tier.`);
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
      card(seconds(look.round_s), "a round lasts", `FedAvg ${seconds(fedavg.round_s)}`),
      card(fine(look.updates_per_1000s), "updates merged per 1000 s", `FedAvg ${fine(fedavg.updates_per_1000s)}`),
      card(fine(look.staleness), "versions an update is old", "FedAvg 0"),
      card(share(look.served), "of the clients are heard", `FedCS ${share(look.served_by_fedcs)}`),
      known
        ? card(`${fine(look.joules_per_1000s)} J`, "spent per 1000 s", `FedAvg ${fine(fedavg.joules_per_1000s)} J`)
        : null,
    ].filter(Boolean);
  }

  function comparison({ look, fedavg, fedcs }) {
    const rows = [
      ["a round lasts", "round_s", seconds],
      ["updates per 1000 s", "updates_per_1000s", fine],
      ["staleness (versions)", "staleness", fine],
      ["clients heard", "served", share],
      ["joules per update", "joules_per_update", fine],
      ["joules per 1000 s", "joules_per_1000s", fine],
    ];
    const known = rows.filter(([, key]) => fedavg[key] !== null);
    return Page.table(
      "In the long run, at this deadline",
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
      "Tiers: who uploads every how many rounds",
      ["tier", "clients", "share", "latency (s)", "every"],
      rows,
    );
    const more = `… and ${number(hidden)} slower ${hidden === 1 ? "tier" : "tiers"}, up to tier ${number(look.tiers.at(-1).tier)}`;
    return hidden > 0 ? [table, h("p", { class: "quiet" }, more)] : [table];
  }

  return { fine, seconds, answer, now, cards, comparison, tiers };
})();
