"use strict";
/* The charts of the explorer: map, latencies, schedule, and the effect of other deadlines. */
window.ExplorerCharts = (() => {
  const { h, number, fine, seconds, upright } = Page;
  const MAX_ROWS = 12;
  const MAX_LINES = 15;
  const MAX_DRAWN = 1000;
  const NUM_BINS = 60;
  const COLORS = { lesson: "#0072B2", fedavg: "#D55E00", fedcs: "#009E73" };
  const PALE = "rgba(127,137,150,.35)";
  const EDGE = "rgba(127,137,150,.55)";
  const GREY = "rgb(127,137,150)";

  /** Put the charts into a section. All are drawn at once first, later one per frame, so that the slider stays smooth. */
  function mount(section, choose) {
    const [map, strip, schedule, curves] = Array.from({ length: 4 }, () => h("div"));
    const made = new Map();
    const waiting = new Set();
    let numRounds = 12;
    let state = null;
    const parts = [
      () => {
        map.hidden = !state.fleet.x_km;
        if (!map.hidden) draw(map, mapChart(state));
      },
      () => draw(strip, stripChart(state)),
      () => draw(schedule, scheduleChart(state, numRounds)),
      () => {
        const isFirst = !made.has(curves);
        draw(curves, curvesChart(state));
        if (isFirst) made.get(curves).place.on("plotly_click", ({ points }) => choose(points[0].x));
      },
    ];
    const rounds = Page.choice(
      "Rounds shown",
      [12, 24, 48].map((count) => [count, `${count} rounds`]),
      (count) => {
        numRounds = count;
        if (state) draw(schedule, scheduleChart(state, numRounds));
      },
    );
    section.append(
      h("h3", {}, "Clients by tier"),
      h("div", { class: "pair" }, map, strip),
      h("h3", {}, "Schedule of the first rounds"),
      rounds,
      schedule,
      h("h3", {}, "Other deadlines"),
      curves,
    );

    function draw(parent, { alt, height, traces, layout, caption, zoom = false }) {
      const sized = { ...layout, height };
      const chart = made.get(parent);
      if (!chart) {
        made.set(parent, Page.chart(parent, { alt, height, traces, layout: sized, caption, zoom }));
        return;
      }
      chart.place.style.height = `${height}px`;
      chart.update(traces, sized, alt);
      parent.querySelector("figcaption").textContent = caption;
    }

    function next() {
      const [part] = waiting;
      part();
      waiting.delete(part);
      if (waiting.size) requestAnimationFrame(next);
      section.setAttribute("aria-busy", String(waiting.size > 0));
    }

    function show(newState) {
      const isFirst = state === null;
      const idle = !waiting.size;
      state = newState;
      for (const part of parts) {
        if (isFirst) part();
        else waiting.add(part);
      }
      if (isFirst) return;
      section.setAttribute("aria-busy", "true");
      if (idle) requestAnimationFrame(next);
    }
    return { show };
  }

  /** The clients to draw, an even sample of large fleets: those in tiers, and unreachable ones. */
  function drawnClients({ fleet, row }) {
    const step = Math.ceil(fleet.name.length / MAX_DRAWN);
    const some = [...fleet.name.keys()].filter((client) => client % step === 0);
    return {
      reached: some.filter((client) => client < row.num_served),
      lost: some.filter((client) => client >= row.num_served),
      note: step > 1 ? `; one in ${step} clients is drawn` : "",
    };
  }

  /** Markers of clients in the colors of their tiers. */
  function tierMarks({ fleet, row, colors }, clients, x, y) {
    const many = clients.length > 500;
    const tiers = row.tiers.flatMap(({ tier, count }, place) => Array(count).fill([tier, colors[place]]));
    return marks(
      "%{text}: %{customdata[1]}, tier %{customdata[0]}",
      x,
      y,
      {
        color: clients.map((client) => tiers[client][1]),
        size: many ? 6 : 9,
        line: { width: many ? 0 : 0.8, color: EDGE },
      },
      {
        text: clients.map((client) => Page.plain(String(fleet.name[client]))),
        customdata: clients.map((client) => [tiers[client][0], seconds(fleet.latency_s[client])]),
      },
    );
  }

  function marks(hover, x, y, marker, more = {}) {
    return {
      type: "scatter",
      mode: "markers",
      x,
      y,
      marker,
      showlegend: false,
      hovertemplate: `${hover}<extra></extra>`,
      ...more,
    };
  }

  function mapChart(state) {
    const { fleet } = state;
    const { reached, lost, note } = drawnClients(state);
    const at = (clients) => [clients.map((client) => fleet.x_km[client]), clients.map((client) => fleet.y_km[client])];
    const reach = 1.08 * Math.max(...[...fleet.x_km, ...fleet.y_km].map(Math.abs));
    const names = lost.map((client) => Page.plain(String(fleet.name[client])));
    const axis = { range: [-reach, reach], zeroline: false, constrain: "domain" };
    return {
      alt: `Map of the clients around the base station, colored by tier: ${tierCounts(state)}.`,
      caption: `Clients around the base station (▲), colored by tier${note}.`,
      height: 340,
      traces: [
        tierMarks(state, reached, ...at(reached)),
        marks("%{text}: unreachable", ...at(lost), { symbol: "x", size: 7, color: GREY }, { text: names }),
        marks("base station", [0], [0], {
          symbol: "triangle-up",
          size: 16,
          color: "#111",
          line: { width: 1.5, color: "#fff" },
        }),
      ],
      layout: {
        xaxis: { ...axis, title: { text: "km" } },
        yaxis: { ...axis, scaleanchor: "x" },
        margin: { l: 36, r: 8, t: 8, b: 40 },
      },
    };
  }

  /** A dot per client over its latency, stacked, with the multiples of the deadline as lines. */
  function stripChart(state) {
    const { fleet, row, reach_s } = state;
    const { reached, note } = drawnClients(state);
    const shown = reached.filter((client) => fleet.latency_s[client] <= reach_s);
    const x = shown.map((client) => fleet.latency_s[client]);
    const [low, high] = [x[0], x.at(-1)];
    const log = high / low > 50;
    const y = stacked(x.map((value) => (log ? Math.log(value / low) / Math.log(high / low) : value / high)));
    return {
      alt: `Latency of each client as a dot, colored by tier, with lines at multiples of the deadline: ${tierCounts(state)}.`,
      caption: `Each dot is a client. Dotted lines are multiples of the deadline, which separate the tiers${note}.${beyond(state)}`,
      height: fleet.x_km ? 340 : 260,
      traces: [tierMarks(state, shown, x, y)],
      layout: {
        xaxis: {
          title: { text: "client latency (s)" },
          ...(log ? { type: "log" } : { type: "linear", range: [0, 1.04 * high] }),
        },
        yaxis: { title: { text: "clients" }, range: [0, Math.max(4, ...y) * 1.15], tickformat: "d" },
        shapes: Page.multiples(row.deadline_s, high, MAX_LINES),
        margin: { l: 48, r: 8, t: 8, b: 44 },
      },
    };
  }

  /** A sentence on clients that are so slow that charts leave them out; empty if there are none. */
  function beyond({ fleet, reach_s }) {
    const count = fleet.latency_s.filter((latency_s) => Number.isFinite(latency_s) && latency_s > reach_s).length;
    if (!count) return "";
    return ` Not drawn: ${number(count)} ${count === 1 ? "client" : "clients"} slower than ${seconds(reach_s)}.`;
  }

  /** The height of each dot above those before it in its bin; places are fractions of the width. */
  function stacked(places) {
    const heights = new Map();
    return places.map((place) => {
      const bin = Math.min(Math.floor(NUM_BINS * place), NUM_BINS - 1);
      const height = (heights.get(bin) ?? 0) + 1;
      heights.set(bin, height);
      return height;
    });
  }

  function tierCounts({ row }) {
    const shown = row.tiers.slice(0, MAX_ROWS).map(({ tier, count }) => `${count} in tier ${tier}`);
    return shown.join(", ") + (row.tiers.length > shown.length ? " and more in slower tiers" : "");
  }

  /** The lines of the schedule: one per client of a small fleet, otherwise one per tier, which is as slow as its slowest client. */
  function scheduleLines({ fleet, row, colors }) {
    if (fleet.name.length > MAX_ROWS)
      return row.tiers.slice(0, MAX_ROWS).map(({ tier, count, slowest_s }, place) => ({
        tier,
        label: `tier ${number(tier)} × ${number(count)}`,
        color: colors[place],
        parts: [["trains and uploads", slowest_s]],
      }));
    return row.tiers.flatMap(({ tier, count, begin, fastest_s }, place) =>
      Array.from({ length: count }, (_, step) => ({
        tier,
        label: `${Page.plain(short(String(fleet.name[begin + step])))} (tier ${number(tier)})`,
        color: colors[place],
        parts: workOf(fleet, begin + step, step ? fleet.latency_s[begin + step] : fastest_s),
      })),
    );
  }

  /** A name, in which the middle is left out if it is long: names in a fleet often begin alike. */
  function short(name) {
    return name.length > 16 ? `${name.slice(0, 8)}…${name.slice(-7)}` : name;
  }

  /** The phases of a client's work and their lengths; those of a promoted client are scaled down to `latency_s`. */
  function workOf(fleet, client, latency_s) {
    const [compute_s, upload_s] = [fleet.compute_s[client], fleet.upload_s[client]];
    if (compute_s === null || upload_s === null) return [["trains and uploads", latency_s]];
    const factor = latency_s / fleet.latency_s[client];
    return [
      ["trains", factor * compute_s],
      ["uploads", factor * upload_s],
    ];
  }

  /** The bars of each kind of work and the aggregations, up to the end of the last round. */
  function scheduleMarks(lines, round_s, numRounds) {
    const bars = new Map();
    const merges = { x: [], y: [] };
    const bar = (kind, { label, color }, at, from_s, to_s) => {
      const length_s = Math.min(to_s, numRounds * round_s) - from_s;
      if (length_s <= 0) return;
      if (!bars.has(kind)) bars.set(kind, { base: [], x: [], y: [], customdata: [], color: [] });
      const one = bars.get(kind);
      const pale = color.replace("rgb(", "rgba(").replace(")", ",.5)");
      one.base.push(from_s);
      one.x.push(length_s);
      one.y.push(at);
      one.customdata.push(label);
      one.color.push({ waits: PALE, uploads: pale }[kind] ?? color);
    };
    for (const [at, line] of lines.entries()) {
      for (let round = 0; round < numRounds; round += line.tier) {
        const end_s = (round + line.tier) * round_s;
        let at_s = round * round_s;
        for (const [kind, length_s] of line.parts) {
          bar(kind, line, at, at_s, at_s + length_s);
          at_s += length_s;
        }
        bar("waits", line, at, at_s, end_s);
        if (round + line.tier <= numRounds) {
          merges.x.push(end_s);
          merges.y.push(at);
        }
      }
    }
    return { bars, merges };
  }

  function scheduleChart(state, numRounds) {
    const { round_s, tiers } = state.row;
    const lines = scheduleLines(state);
    const { bars, merges } = scheduleMarks(lines, round_s, numRounds);
    const work = ["trains", "uploads", "trains and uploads", "waits"]
      .filter((kind) => bars.has(kind))
      .map((kind) => {
        const { color, ...places } = bars.get(kind);
        return {
          type: "bar",
          orientation: "h",
          name: kind,
          ...places,
          width: 0.6,
          marker: { color: color, line: { width: 0 } },
          hovertemplate: `${kind} from %{base:.4~g} s<extra>%{customdata}</extra>`,
        };
      });
    const diamond = {
      symbol: "diamond",
      size: numRounds > 24 ? 6 : 9,
      color: "#111",
      line: { width: 1, color: "#fff" },
    };
    const byTier = state.fleet.name.length > MAX_ROWS;
    const hidden = byTier ? tiers.length - lines.length : 0;
    return {
      alt: `Schedule of the first ${numRounds} rounds of ${fine(round_s)} s. Updates of tier j are aggregated at the end of every j-th round: ${tierCounts(state)}.`,
      caption:
        "A bar starts when clients receive the newest model; ◆ marks the aggregation of their updates." +
        (byTier ? " The bar of a tier shows its slowest client." : "") +
        (hidden ? ` ${number(hidden)} slower tiers are not drawn.` : "") +
        " Drag or use the toolbar to zoom in, double-click to zoom out.",
      height: 116 + 30 * Math.max(lines.length, 3),
      zoom: true,
      traces: [
        ...work,
        marks("aggregated at %{x:.4~g} s", merges.x, merges.y, diamond, { name: "aggregated", showlegend: true }),
      ],
      layout: {
        barmode: "overlay",
        xaxis: { title: { text: "time (s)" }, range: [0, numRounds * round_s * 1.01] },
        yaxis: {
          autorange: "reversed",
          tickvals: [...lines.keys()],
          ticktext: lines.map(({ label }) => label),
          showgrid: false,
          ticklabelstandoff: 4,
        },
        shapes: Page.multiples(round_s, numRounds * round_s, numRounds, { color: EDGE, width: 0.6 }),
        margin: { l: 60, r: 8, t: 40, b: 44 },
      },
    };
  }

  /** Updates per 1,000 s and staleness over the deadline, with the chosen deadline marked. */
  function curvesChart(state) {
    const { fleet, row, fedavg, reach_s } = state;
    const { proposed_s } = state.advice;
    const rows = state.rows.slice(0, -1); // without infinity
    const edge_s = rows.find(({ deadline_s }) => deadline_s >= reach_s).deadline_s;
    const first = Math.max(rows[0].deadline_s, edge_s / 1e5);
    const here_s = Math.min(Math.max(row.deadline_s, first), edge_s);
    const line = (name, of, color, dash, more = {}) => ({
      type: "scatter",
      mode: "lines",
      name,
      x: rows.map((one) => one.deadline_s),
      y: rows.map(of),
      line: { color: color, width: 2.2, dash },
      hovertemplate: `${name}: %{y:.3~g} at τ = %{x} s<extra></extra>`,
      ...more,
    });
    const dot = (y, yaxis) =>
      marks(
        "",
        [here_s],
        [y],
        { size: 11, color: COLORS.lesson, line: { width: 2, color: "#fff" } },
        { yaxis, hoverinfo: "skip", hovertemplate: null },
      );
    const unmet = {
      type: "rect",
      x0: first / 2,
      x1: fleet.latency_s[0],
      yref: "paper",
      y0: 0,
      y1: 1,
      line: { width: 0 },
      fillcolor: EDGE,
      opacity: 0.25,
      layer: "below",
    };
    return {
      alt:
        `Updates per 1,000 s go from ${fine(rows[0].updates_per_1000s)} to ${fine(fedavg.updates_per_1000s)} and staleness ` +
        `from ${fine(rows[0].staleness)} to 0 versions as the deadline grows from ${fine(first)} to ` +
        `${fine(rows.at(-1).deadline_s)} s; the chosen deadline is ${seconds(row.deadline_s)}.`,
      caption:
        `The solid vertical line is the chosen deadline, and the dotted one is the proposed ${seconds(proposed_s)}. Click a curve to choose its deadline. ` +
        `Gray: deadlines that no client meets${state.ensure_first_tier ? ", where the fastest client is promoted to tier 1" : ""}.${beyond(state)}`,
      height: 420,
      traces: [
        line("LESSON", (one) => one.updates_per_1000s, COLORS.lesson, "solid"),
        line("FedAvg", () => fedavg.updates_per_1000s, COLORS.fedavg, "dash"),
        line("FedCS", ({ fedcs }) => fedcs?.updates_per_1000s, COLORS.fedcs, "dot"),
        line("staleness of LESSON", (one) => one.staleness, COLORS.lesson, "solid", { yaxis: "y2", showlegend: false }),
        dot(row.updates_per_1000s, "y"),
        dot(row.staleness, "y2"),
      ],
      layout: {
        xaxis: {
          type: "log",
          title: { text: "deadline τ (s)" },
          range: [Math.log10(first), Math.log10(edge_s * 1.02)],
          anchor: "y2",
          tickvals: roundNumbers(first, edge_s),
        },
        yaxis: { domain: [0.47, 1], rangemode: "tozero", title: { text: "updates per 1,000 s" } },
        yaxis2: { domain: [0, 0.4], rangemode: "tozero", title: { text: "staleness" } },
        shapes: [
          unmet,
          upright(proposed_s, { color: EDGE, width: 1, dash: "dot" }),
          upright(here_s, { color: COLORS.lesson, width: 1.5 }),
        ],
        margin: { l: 56, r: 8, t: 34, b: 44 },
      },
    };
  }

  /** 1, 2 and 5 times powers of ten between two numbers; of many powers, only those themselves. */
  function roundNumbers(first, last) {
    const lowest = Math.floor(Math.log10(first));
    const digits = last / first > 1e4 ? [1] : [1, 2, 5];
    const powers = Array.from({ length: Math.ceil(Math.log10(last)) - lowest + 1 }, (_, place) => lowest + place);
    return powers
      .flatMap((power) => digits.map((digit) => Number(`${digit}e${power}`)))
      .filter((value) => value >= first && value <= last);
  }

  return { mount };
})();
