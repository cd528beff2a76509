"use strict";
/* The effect of a deadline on a fleet: the numbers of `lesson plan`, computed in the page. Nothing is drawn here.
   A fleet is { name, x_km, y_km, compute_s, upload_s, latency_s, compute_j, transmit_j }: lists with one entry per client.
   Unknown values are null; latency_s is Infinity for an unreachable client. */
const Tiers = (() => {
  const TOLERANCE = 1e-12,
    UNREACHABLE = 0,
    MAX_TIER = 2 ** 53,
    SLOTS_LOOKED_AT = 500_000,
    OUTLIER = 100;

  /** The smallest j with t ≤ j·τ·(1 + 10⁻¹²) for each client; 0 for an unreachable one. */
  function assignTiers(latencies, deadline_s) {
    return latencies.map((latency_s) => {
      if (!Number.isFinite(latency_s)) return UNREACHABLE;
      let tier = Math.max(Math.ceil(latency_s / (deadline_s * (1 + TOLERANCE))), 1);
      // The division rounds, so the quotient may be one off at an edge; the comparison itself decides.
      if (tier > 1 && latency_s <= (tier - 1) * deadline_s * (1 + TOLERANCE)) tier -= 1;
      if (latency_s > tier * deadline_s * (1 + TOLERANCE)) tier += 1;
      return tier < MAX_TIER ? tier : UNREACHABLE;
    });
  }

  /** The fleet at a deadline: tiers, latencies as used, and the client promoted to tier 1, or null. */
  function sortFleet(fleet, deadline_s, ensureFirstTier) {
    const tiers = assignTiers(fleet.latency_s, deadline_s);
    if (!ensureFirstTier || tiers.includes(1) || !tiers.some(Boolean))
      return { tiers, latency_s: fleet.latency_s, promoted: null };
    const promoted = fleet.latency_s.indexOf(smallest(fleet.latency_s));
    const latency_s = fleet.latency_s.with(promoted, deadline_s);
    return { tiers: assignTiers(latency_s, deadline_s), latency_s, promoted };
  }

  /** What LESSON does with a deadline in the long run; `tiers` lists each tier with its clients, fast to slow. */
  function lookAtDeadline(fleet, deadline_s, ensureFirstTier) {
    const { tiers, latency_s, promoted } = sortFleet(fleet, deadline_s, ensureFirstTier);
    const groups = groupsOf(tiers);
    const numReachable = latency_s.filter(Number.isFinite).length;
    const allInTier1 = groups.length === 1 && groups[0].tier === 1 && groups[0].clients.length === numReachable;
    const round_s = allInTier1 ? slowest(latency_s) : deadline_s;
    const perRound = sum(groups.map(({ tier, clients }) => clients.length / tier));
    const joulesPerRound = sum(
      groups.map(({ tier, clients }) => sum(clients.map((client) => joulesOf(fleet, client))) / tier),
    );
    return {
      ...figures(round_s, perRound, joulesPerRound, numServed(groups) / tiers.length),
      deadline_s,
      promoted,
      latency_s,
      assigned: tiers,
      tiers: groups,
      num_tiers: groups.length,
      staleness: meanStaleness(groups),
      served_by_fedcs: tiers.filter((tier) => tier === 1).length / tiers.length,
      unreachable: tiers.length - numServed(groups),
    };
  }

  /** The same for FedAvg, which waits for the slowest client in every round; `round_s` is its length if times vary. */
  function lookAtFedavg(fleet, round_s = null) {
    const clients = [...fleet.latency_s.keys()].filter((client) => Number.isFinite(fleet.latency_s[client]));
    const joules = sum(clients.map((client) => joulesOf(fleet, client)));
    return {
      ...figures(round_s ?? slowest(fleet.latency_s), clients.length, joules, clients.length / fleet.latency_s.length),
      staleness: 0,
    };
  }

  /** The same for FedCS with the deadline of `look`: tier 1 only; null if it cannot run. */
  function lookAtFedcs(fleet, look) {
    if (look.tiers[0]?.tier !== 1 || look.deadline_s === Infinity) return null;
    const { clients } = look.tiers[0];
    const joules = sum(clients.map((client) => joulesOf(fleet, client)));
    return { ...figures(look.deadline_s, clients.length, joules, look.served_by_fedcs), staleness: 0 };
  }

  function figures(round_s, perRound, joulesPerRound, served) {
    const known = Number.isFinite(joulesPerRound) && perRound > 0;
    const updates_per_1000s = (perRound * 1000) / round_s;
    const joules_per_update = known ? joulesPerRound / perRound : null;
    return {
      round_s,
      updates_per_1000s,
      served,
      joules_per_update,
      joules_per_1000s: known ? joules_per_update * updates_per_1000s : null,
    };
  }

  /** Mean staleness of aggregated updates, as in `mean_staleness` of lesson.planning.plan. */
  function meanStaleness(groups) {
    if (!groups.length) return null;
    const tiers = groups.map(({ tier }) => tier),
      rates = groups.map(({ tier, clients }) => clients.length / tier);
    const missed = tiers[0] === 1 ? tiers.map((tier) => tier - 1) : versionsMissed(tiers);
    return sum(rates.map((rate, place) => rate * missed[place])) / sum(rates);
  }

  /** Versions that an update of each tier misses where tier 1 is empty, counted over many rounds. */
  function versionsMissed(tiers) {
    const slotsPerRound = sum(tiers.map((tier) => 1 / tier));
    const horizon = Math.trunc(Math.min(64 * tiers.at(-1), Math.max(tiers[0], SLOTS_LOOKED_AT / slotsPerRound)));
    const slots = (tier) => Array.from({ length: Math.floor(horizon / tier) }, (_, place) => (place + 1) * tier);
    const versions = Float64Array.from(new Set(tiers.flatMap(slots))).sort();
    return tiers.map((tier) => {
      const ends = slots(tier);
      if (!ends.length) return ((tier - 1) * versions.length) / horizon;
      return sum(ends.map((end) => countBelow(versions, end) - countBelow(versions, end - tier + 1))) / ends.length;
    });
  }

  /** How many of sorted whole numbers are below a limit. */
  function countBelow(sorted, limit) {
    let low = 0,
      high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < limit) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The first rounds: when each ends and which tiers are aggregated then. */
  function schedule(look, numRounds) {
    return Array.from({ length: numRounds }, (_, place) => {
      const round = place + 1;
      return {
        round,
        end_s: round * look.round_s,
        tiers: look.tiers.filter(({ tier }) => round % tier === 0).map(({ tier }) => tier),
      };
    });
  }

  /** A deadline to start with: the latency that a quarter of the clients do not exceed plus 10 %, rounded up to two digits. */
  function proposeDeadline(latencies) {
    const sorted = latencies.filter(Number.isFinite).sort((one, other) => one - other);
    return roundUp(1.1 * sorted[Math.max(0, Math.ceil(sorted.length / 4) - 1)]);
  }

  /** Latency of the slowest client that is not an outlier, as in `reach_of` of lesson.fleet.fleet. */
  function reach(latencies) {
    const sorted = latencies.filter(Number.isFinite).sort((one, other) => one - other);
    const most = OUTLIER * sorted[Math.floor(0.9 * (sorted.length - 1))];
    return sorted.findLast((latency_s) => latency_s <= most);
  }

  /** A number rounded up to two digits. */
  function roundUp(value) {
    const unit = 10 ** (Math.floor(Math.log10(value)) - 1);
    return Number((Math.ceil((value / unit) * (1 - 1e-9)) * unit).toPrecision(2));
  }

  function groupsOf(tiers) {
    const groups = new Map();
    tiers.forEach((tier, client) => {
      if (tier === UNREACHABLE) return;
      if (!groups.has(tier)) groups.set(tier, []);
      groups.get(tier).push(client);
    });
    return [...groups].map(([tier, clients]) => ({ tier, clients })).sort((one, other) => one.tier - other.tier);
  }

  function joulesOf(fleet, client) {
    return (fleet.compute_j?.[client] ?? NaN) + (fleet.transmit_j?.[client] ?? NaN);
  }
  function numServed(groups) {
    return sum(groups.map(({ clients }) => clients.length));
  }
  function sum(values) {
    return values.reduce((total, value) => total + value, 0);
  }
  function smallest(values) {
    return values.reduce((least, value) => Math.min(least, value), Infinity);
  }
  function slowest(latencies) {
    return latencies.reduce((most, value) => (Number.isFinite(value) ? Math.max(most, value) : most), 0);
  }

  return {
    assignTiers,
    lookAtDeadline,
    lookAtFedavg,
    lookAtFedcs,
    schedule,
    proposeDeadline,
    reach,
    roundUp,
    smallest,
    slowest,
  };
})();
