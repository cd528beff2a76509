"use strict";
/* The deadline explorer: a slider for τ, and what it does to a fleet. `Explorer.mount(section, data)`. */
const Explorer = (() => {
  const { h, number } = Page;
  const MAX_ROWS = 12, MAX_LINES = 15, MAX_DRAWN = 1000, CURVE_POINTS = 90;
  const COLOURS = { lesson: "#0072B2", fedavg: "#D55E00", fedcs: "#009E73" };
  const QUIET = "rgba(127,137,150,.35)", EDGE = "rgba(127,137,150,.55)", GREY = "rgb(127,137,150)";

  /** Put the explorer into a section. `data` is what lesson.report.page.fleet_data makes. */
  function mount(section, data) {
    const state = {};
    const picker = fleetPicker(section, (fleet, source) => begin(measured(fleet, source)), () => begin(given(data)));
    const controls = deadlineControls((deadline_s) => choose(deadline_s), (ensure) => { state.ensureFirstTier = ensure; beginAt(state.deadline_s); });
    const answer = h("p", { class: "answer" }), now = h("p", { class: "now", "aria-live": "polite" });
    const cards = h("div", { class: "cards" }), comparison = h("div", {}), tiers = h("div", {});
    section.append(picker.element, answer, ...controls.elements, now, cards, h("div", { class: "pair" }, comparison, tiers));
    const charts = drawings(section, choose);

    /** Take another fleet, at the deadline it comes with. */
    function begin(fleetState) {
      Object.assign(state, fleetState, {
        proposed_s: Tiers.proposeDeadline(fleetState.fleet.latency_s), fedavg: Tiers.lookAtFedavg(fleetState.fleet), values: scale(fleetState.fleet),
      });
      picker.show(state);
      beginAt(fleetState.deadline_s ?? state.proposed_s);
    }

    /** Work out what does not depend on the deadline, then the rest at this one. */
    function beginAt(deadline_s) {
      const step = Math.max(1, Math.floor(state.values.length / CURVE_POINTS));
      const chosen = state.values.filter((_, place) => (state.values.length - 1 - place) % step === 0);
      state.curve = chosen.map((value) => lookAt(value)).filter(({ tiers }) => tiers.length);
      answer.replaceChildren(...answerWords(state, lookAt(state.proposed_s)));
      controls.begin(state);
      choose(deadline_s);
    }

    function lookAt(deadline_s) { return Tiers.lookAtDeadline(state.fleet, deadline_s, state.ensureFirstTier); }

    function choose(deadline_s) {
      const look = lookAt(deadline_s);
      if (!look.tiers.length) { controls.refuse(`the deadline must be longer, got ${deadline_s} s: every client would take over 2^53 rounds`); return; }
      Object.assign(state, { deadline_s, look, fedcs: Tiers.lookAtFedcs(state.fleet, look), colours: Page.tierColours(look.tiers.length) });
      controls.show(state);
      now.replaceChildren(nowWords(state));
      cards.replaceChildren(...cardsOf(state));
      comparison.replaceChildren(comparisonTable(state));
      tiers.replaceChildren(...tiersTable(state));
      charts.show(state);
    }

    begin(given(data));
  }

  function given(data) {
    const { clients } = data, latency_s = clients.latency_s.map((value) => value ?? Infinity);
    return {
      fleet: { ...clients, latency_s }, source: data.source, original: true, ensureFirstTier: data.ensure_first_tier,
      deadline_s: data.deadline_s ?? Infinity, numClients: data.num_clients ?? latency_s.length,
    };
  }

  /** A measured fleet is left as it is: nobody is put into tier 1 unless asked for. */
  function measured(fleet, source) {
    return { fleet, source, original: false, ensureFirstTier: false, deadline_s: null, numClients: fleet.name.length };
  }

  /** Deadlines of two digits from a quarter of the fastest client's latency to the slowest's, rising. */
  function scale({ latency_s }) {
    const last = Tiers.roundUp(Tiers.slowest(latency_s));
    const values = [Tiers.roundUp(Math.max(Tiers.smallest(latency_s) / 4, last / 1e5))];
    while (values.at(-1) < last) values.push(Math.min(last, Tiers.roundUp(values.at(-1) * 1.005)));
    return values;
  }

  // ---- controls

  function deadlineControls(choose, ensure) {
    let state = null, waiting = null;
    const slider = h("input", { type: "range", id: "deadline-slider", min: "0", step: "1", "aria-label": "Deadline τ", input: () => later(state.values[slider.value]) });
    const field = h("input", { type: "number", id: "deadline-field", min: "0", step: "any", inputmode: "decimal", placeholder: "none", input: typed });
    const alert = h("p", { class: "wrong", role: "alert" });
    const proposed = h("button", { type: "button", click: () => choose(state.proposed_s) });
    const none = h("button", { type: "button", click: () => choose(Infinity) }, "As FedAvg (no deadline)");
    const box = h("input", { type: "checkbox", change: () => ensure(box.checked) });

    function later(deadline_s) { // at most one redraw per frame
      if (waiting === null) requestAnimationFrame(() => { const value = waiting; waiting = null; choose(value); });
      waiting = deadline_s;
      slider.setAttribute("aria-valuetext", seconds(deadline_s));
    }

    function typed() {
      const value = Number(field.value);
      if (field.value && value > 0) later(value);
      else refuse(`the deadline must be a number > 0, got '${field.value}'`);
    }

    function refuse(message) { alert.textContent = message; field.setAttribute("aria-invalid", "true"); }

    function begin(newState) {
      state = newState;
      slider.max = String(state.values.length - 1);
      proposed.textContent = `Proposed: ${seconds(state.proposed_s)}`;
      box.checked = state.ensureFirstTier;
    }

    function show({ deadline_s, values, look }) {
      const place = values.findIndex((value) => value >= deadline_s);
      slider.value = String(place < 0 ? values.length - 1 : place);
      slider.setAttribute("aria-valuetext", `${seconds(deadline_s)}, ${look.num_tiers} ${look.num_tiers === 1 ? "tier" : "tiers"}`);
      if (Number(field.value) !== deadline_s) field.value = Number.isFinite(deadline_s) ? String(deadline_s) : "";
      field.removeAttribute("aria-invalid");
      alert.textContent = "";
    }

    const elements = [
      h("div", { class: "deadline" }, h("label", { for: "deadline-field" }, "Deadline τ"), h("span", {}, field, " s"), slider), alert,
      h("div", { class: "controls" }, proposed, none, h("label", {}, box, " put the fastest client into tier 1 if nobody meets the deadline")),
    ];
    return { elements, begin, show, refuse };
  }

  function fleetPicker(section, take, back) {
    const told = h("span", {}), alert = h("p", { class: "wrong", role: "alert" });
    const input = h("input", { type: "file", accept: ".csv,text/csv,text/plain", class: "visually-hidden", change: () => { read(input.files[0]); input.value = ""; } });
    const again = h("button", { type: "button", hidden: true, click: () => { alert.textContent = ""; back(); } }, "Back to the fleet of this page");
    const element = h("div", { class: "drop" }, h("p", {}, told),
      h("p", {}, "Your own fleet: drop a CSV file of measured latencies here, or ", h("label", { class: "file" }, "choose a file", input),
        " ", h("a", { download: "fleet.csv", href: `data:text/csv;charset=utf-8,${encodeURIComponent(FleetCsv.EXAMPLE)}` }, "An example"),
        ". It stays in this page: nothing is sent."), again, alert);

    async function read(file) {
      if (!file) return;
      element.setAttribute("aria-busy", "true");
      try {
        const fleet = FleetCsv.read(await file.arrayBuffer(), file.name);
        alert.textContent = "";
        take(fleet, file.name);
      } catch (error) { alert.textContent = error.message; }
      element.setAttribute("aria-busy", "false");
    }

    function over(event) {
      if (![...event.dataTransfer.types].includes("Files")) return;
      event.preventDefault();
      element.classList.toggle("over", event.type === "dragover");
      if (event.type === "drop") read(event.dataTransfer.files[0]);
    }
    for (const name of ["dragover", "dragleave", "drop"]) section.addEventListener(name, over);

    function show({ fleet, source, original, numClients }) {
      const held = fleet.name.length;
      told.textContent = `${number(numClients)} ${numClients === 1 ? "client" : "clients"}: ${source}.`
        + (held < numClients ? ` This page holds ${number(held)} of them, evenly spread over their latencies; its numbers are of these.` : "");
      again.hidden = original;
    }
    return { element, show };
  }

  // ---- words and tables

  /** A number of about three digits. */
  function fine(value) {
    if (value === null || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 0.01 || size >= 1e7)) return String(Number(value.toPrecision(3)));
    return size >= 100 ? number(value) : number(value, size >= 10 ? 1 : 2).replace(/\.?0+$/, "");
  }

  function seconds(value) { return value === Infinity ? "no deadline" : `${fine(value)} s`; }

  function share(value) { return `${number(100 * value, value > 0.99 && value < 1 ? 1 : 0)} %`; }

  /** Which deadline to begin with, and why. */
  function answerWords({ fleet, proposed_s, fedavg }, look) {
    const count = fleet.name.length, left = Math.round(count * (look.served - look.served_by_fedcs));
    return [
      h("strong", {}, `Begin with ${seconds(proposed_s)}. `),
      `The fastest quarter of the clients meet this deadline with a tenth to spare. LESSON then merges ${fine(look.updates_per_1000s)} updates per 1000 s, `
      + `${fine(look.staleness)} versions old on average. A shorter deadline gives more updates, but staler ones; a longer one fewer and fresher. `
      + `FedCS would leave out ${number(left)} of ${number(count)} clients for good; FedAvg would wait ${seconds(fedavg.round_s)} for the slowest in every round `
      + `and merge ${fine(fedavg.updates_per_1000s)} updates per 1000 s.`,
    ];
  }

  /** What the deadline chosen now does. */
  function nowWords({ fleet, deadline_s, look }) {
    const [first] = look.tiers, count = fleet.name.length, met = first.tier === 1 ? first.clients.length : 0;
    const told = [];
    if (look.promoted !== null) told.push(`Nobody meets ${seconds(deadline_s)}: the fastest client, ${fleet.name[look.promoted]}, is taken to, though it needs ${seconds(fleet.latency_s[look.promoted])}.`);
    else if (!met) told.push(`Nobody meets ${seconds(deadline_s)}: the first updates are merged after ${number(first.tier)} rounds, and FedCS has nobody to ask.`);
    else if (look.num_tiers === 1 && look.round_s < Infinity) told.push(`Everybody who can be reached meets ${deadline_s === Infinity ? "it" : seconds(deadline_s)}: LESSON is FedAvg here.`);
    else told.push(`At ${seconds(deadline_s)}, ${number(met)} of ${number(count)} clients upload in every round; the slowest tier does in every ${number(look.tiers.at(-1).tier)} rounds.`);
    if (look.unreachable) told.push(`${number(look.unreachable)} of ${number(count)} clients cannot be reached and are in no tier.`);
    return told.join(" ");
  }

  function cardsOf({ look, fedavg }) {
    const card = (value, label, note) => h("div", { class: "card" }, h("div", { class: "value" }, value), h("div", { class: "label" }, label), h("div", { class: "note quiet" }, note));
    const known = look.joules_per_1000s !== null;
    return [
      card(seconds(look.round_s), "a round lasts", `FedAvg ${seconds(fedavg.round_s)}`),
      card(fine(look.updates_per_1000s), "updates merged per 1000 s", `FedAvg ${fine(fedavg.updates_per_1000s)}`),
      card(fine(look.staleness), "versions an update is old", "FedAvg 0"),
      card(share(look.served), "of the clients are heard", `FedCS ${share(look.served_by_fedcs)}`),
      known ? card(`${fine(look.joules_per_1000s)} J`, "spent per 1000 s", `FedAvg ${fine(fedavg.joules_per_1000s)} J`) : null,
    ].filter(Boolean);
  }

  function comparisonTable({ look, fedavg, fedcs }) {
    const rows = [
      ["a round lasts", "round_s", seconds], ["updates per 1000 s", "updates_per_1000s", fine], ["staleness (versions)", "staleness", fine],
      ["clients heard", "served", share], ["joules per update", "joules_per_update", fine], ["joules per 1000 s", "joules_per_1000s", fine],
    ];
    const known = rows.filter(([, key]) => fedavg[key] !== null);
    return Page.table("In the long run, at this deadline", ["", "LESSON", "FedAvg", "FedCS"],
      known.map(([label, key, words]) => [label, ...[look, fedavg, fedcs].map((one) => (one ? words(one[key]) : "–"))]));
  }

  function tiersTable({ fleet, look, colours }) {
    const shown = look.tiers.slice(0, MAX_ROWS), hidden = look.num_tiers - shown.length;
    const rows = shown.map(({ tier, clients }, place) => {
      const latencies = clients.map((client) => look.latency_s[client]);
      const [low, high] = [Tiers.smallest(latencies), Tiers.slowest(latencies)].map(fine);
      return [h("span", {}, Page.swatch(colours[place]), number(tier)), number(clients.length), share(clients.length / fleet.name.length),
        low === high ? low : `${low} – ${high}`, tier === 1 ? "round" : `${number(tier)} rounds`];
    });
    return [Page.table("Tiers: who uploads every how many rounds", ["tier", "clients", "share", "latency (s)", "every"], rows),
      hidden > 0 ? h("p", { class: "quiet" }, `… and ${number(hidden)} slower ${hidden === 1 ? "tier" : "tiers"}, up to tier ${number(look.tiers.at(-1).tier)}`) : null].filter(Boolean);
  }

  // ---- charts

  /** The charts. Their first drawing is at once; later ones, one a frame, so that the slider stays smooth. */
  function drawings(section, choose) {
    const map = h("div", {}), strip = h("div", {}), schedule = h("div", {}), curves = h("div", {}), made = {}, waiting = new Set();
    let numRounds = 12, state = null;
    const parts = {
      map: () => { map.hidden = !state.fleet.x_km; if (!map.hidden) draw("map", map, mapChart(state)); },
      strip: () => draw("strip", strip, stripChart(state)),
      schedule: () => draw("schedule", schedule, scheduleChart(state, numRounds)),
      curves: () => draw("curves", curves, curvesChart(state)),
    };
    const rounds = Page.choice("Rounds shown", [12, 24, 48].map((count) => [count, `${count} rounds`]), (count) => { numRounds = count; if (state) parts.schedule(); });
    section.append(h("h3", {}, "Who is in which tier"), h("div", { class: "pair" }, map, strip), h("h3", {}, "The first rounds"), rounds, schedule,
      h("h3", {}, "Other deadlines"), curves);

    function draw(name, parent, { alt, height, traces, layout, caption, zoom = false }) {
      const sized = { ...layout, height };
      if (!made[name]) {
        made[name] = Page.chart(parent, { alt, height, traces, layout: sized, caption, zoom });
        if (name === "curves") made[name].place.on("plotly_click", ({ points }) => choose(points[0].x));
        return;
      }
      made[name].place.style.height = `${height}px`;
      made[name].update(traces, sized, alt);
      parent.querySelector("figcaption").textContent = caption;
    }

    function next() {
      const [name] = waiting;
      parts[name]();
      waiting.delete(name);
      if (waiting.size) requestAnimationFrame(next);
      section.setAttribute("aria-busy", String(waiting.size > 0));
    }

    function show(newState) {
      const first = state === null, idle = !waiting.size;
      state = newState;
      if (first) { Object.values(parts).forEach((part) => part()); return; }
      Object.keys(parts).forEach((name) => waiting.add(name));
      section.setAttribute("aria-busy", "true");
      if (idle) requestAnimationFrame(next);
    }
    return { show };
  }

  /** The clients that are drawn, of many every so many-th: those in tiers, and those nobody can reach. */
  function drawnClients({ fleet, look }) {
    const step = Math.ceil(fleet.name.length / MAX_DRAWN), some = [...fleet.name.keys()].filter((client) => client % step === 0);
    return { reached: some.filter((client) => look.assigned[client]), lost: some.filter((client) => !look.assigned[client]), note: step > 1 ? `; one client in ${step} is drawn` : "" };
  }

  function markTrace({ fleet, look, colours }, clients, x, y) {
    const rank = new Map(look.tiers.map(({ tier }, place) => [tier, place])), many = clients.length > 500;
    return {
      type: "scatter", mode: "markers", x, y, customdata: clients.map((client) => [look.assigned[client], seconds(fleet.latency_s[client])]),
      text: clients.map((client) => String(fleet.name[client])), showlegend: false, hovertemplate: "%{text}: %{customdata[1]}, tier %{customdata[0]}<extra></extra>",
      marker: { color: clients.map((client) => colours[rank.get(look.assigned[client])]), size: many ? 6 : 9, line: { width: many ? 0 : 0.8, color: EDGE } },
    };
  }

  function mapChart(state) {
    const { fleet } = state, { reached, lost, note } = drawnClients(state), at = (clients) => [clients.map((client) => fleet.x_km[client]), clients.map((client) => fleet.y_km[client])];
    const reach = 1.08 * Math.max(...at([...reached, ...lost]).flat().map(Math.abs)), [x, y] = at(lost);
    const gone = { type: "scatter", mode: "markers", x, y, text: lost.map((client) => String(fleet.name[client])), showlegend: false, hovertemplate: "%{text}: cannot be reached<extra></extra>", marker: { symbol: "x", size: 7, color: GREY } };
    const station = { type: "scatter", mode: "markers", x: [0], y: [0], showlegend: false, hovertemplate: "base station<extra></extra>", marker: { symbol: "triangle-up", size: 16, color: "#111", line: { width: 1.5, color: "#fff" } } };
    return {
      alt: `Map of the clients around the base station, coloured by tier: ${tierCounts(state)}.`, height: 340, caption: `Clients around the base station, ▲, coloured by tier${note}`,
      traces: [markTrace(state, reached, ...at(reached)), gone, station],
      layout: { xaxis: { range: [-reach, reach], title: { text: "km" }, zeroline: false, constrain: "domain" }, yaxis: { range: [-reach, reach], zeroline: false, scaleanchor: "x", constrain: "domain" }, margin: { l: 36, r: 8, t: 8, b: 40 } },
    };
  }

  /** A dot per client over its latency, stacked, with the multiples of the deadline as lines. */
  function stripChart(state) {
    const { fleet, deadline_s } = state, { reached, note } = drawnClients(state), x = reached.map((client) => fleet.latency_s[client]);
    const [low, high] = [Tiers.smallest(x), Tiers.slowest(x)], log = high / low > 50;
    const place = (value) => Math.floor(59.999 * (log ? Math.log(value / low) / Math.log(high / low) : value / high));
    const stacks = new Map(), y = x.map((value) => { const bin = place(value), height = (stacks.get(bin) ?? 0) + 1; stacks.set(bin, height); return height; });
    const lines = Array.from({ length: Math.min(MAX_LINES, Math.floor(high / deadline_s)) }, (_, index) => (index + 1) * deadline_s);
    const edge = (value) => ({ type: "line", x0: value, x1: value, y0: 0, y1: 1, yref: "paper", line: { color: EDGE, width: 1, dash: "dot" } });
    return {
      alt: `Latency of each client as a dot, coloured by tier, with lines at multiples of the deadline: ${tierCounts(state)}.`, height: fleet.x_km ? 340 : 260,
      caption: `A dot is a client; dotted lines are multiples of the deadline, where a tier ends${note}`,
      traces: [markTrace(state, reached, x, y)],
      layout: {
        xaxis: { title: { text: "latency of a client (s)" }, type: log ? "log" : "linear", ...(log ? {} : { range: [0, 1.04 * high] }) },
        yaxis: { title: { text: "clients" }, range: [0, Math.max(4, ...y) * 1.15], tickformat: "d" }, shapes: lines.map(edge), margin: { l: 48, r: 8, t: 8, b: 44 },
      },
    };
  }

  function tierCounts({ look }) {
    const shown = look.tiers.slice(0, MAX_ROWS).map(({ tier, clients }) => `${clients.length} in tier ${tier}`);
    return shown.join(", ") + (look.num_tiers > shown.length ? " and others slower" : "");
  }

  /** What each row of the schedule is about: a client where they are few, else a tier, which is as slow as its slowest. */
  function scheduleRows({ fleet, look, colours }) {
    if (fleet.name.length > MAX_ROWS) {
      return look.tiers.slice(0, MAX_ROWS).map(({ tier, clients }, place) => ({
        tier, label: `tier ${number(tier)} × ${number(clients.length)}`, colour: colours[place], parts: [["trains and uploads", Tiers.slowest(clients.map((client) => look.latency_s[client]))]],
      }));
    }
    return look.tiers.flatMap(({ tier, clients }, place) => clients.map((client) => {
      const [compute_s, upload_s] = [fleet.compute_s[client], fleet.upload_s[client]], latency_s = look.latency_s[client], factor = latency_s / fleet.latency_s[client];
      const known = Number.isFinite(compute_s ?? NaN) && Number.isFinite(upload_s ?? NaN);
      return { tier, label: `${String(fleet.name[client]).slice(0, 16)} (tier ${number(tier)})`, colour: colours[place], parts: known ? [["trains", factor * compute_s], ["uploads", factor * upload_s]] : [["trains and uploads", latency_s]] };
    }));
  }

  function scheduleChart(state, numRounds) {
    const { look } = state, rows = scheduleRows(state), rounds = Tiers.schedule(look, numRounds), horizon_s = rounds.at(-1).end_s, bars = new Map(), merges = { x: [], y: [] };
    const bar = (kind, row, from_s, to_s) => {
      if (!bars.has(kind)) bars.set(kind, { base: [], x: [], y: [], colour: [] });
      const { base, x, y, colour } = bars.get(kind), length_s = Math.min(to_s, horizon_s) - from_s;
      if (length_s > 0) { base.push(from_s); x.push(length_s); y.push(row.label); colour.push({ waits: QUIET, uploads: row.colour.replace("rgb(", "rgba(").replace(")", ",.5)") }[kind] ?? row.colour); }
    };
    for (const row of rows) {
      for (let slot = 0; slot * row.tier < numRounds; slot += 1) {
        let at_s = slot * row.tier * look.round_s;
        for (const [kind, length_s] of row.parts) { bar(kind, row, at_s, at_s + length_s); at_s += length_s; }
        bar("waits", row, at_s, (slot + 1) * row.tier * look.round_s);
        if ((slot + 1) * row.tier <= numRounds) { merges.x.push((slot + 1) * row.tier * look.round_s); merges.y.push(row.label); }
      }
    }
    const traces = ["trains", "uploads", "trains and uploads", "waits"].filter((kind) => bars.has(kind)).map((kind) => {
      const { base, x, y, colour } = bars.get(kind);
      return { type: "bar", orientation: "h", name: kind, base, x, y, width: 0.6, marker: { color: colour, line: { width: 0 } }, hovertemplate: `${kind} %{base:.4~g} s to %{x:.4~g} s<extra>%{y}</extra>` };
    });
    traces.push({ type: "scatter", mode: "markers", name: "merged", ...merges, marker: { symbol: "diamond", size: numRounds > 24 ? 6 : 9, color: "#111", line: { width: 1, color: "#fff" } }, hovertemplate: "merged at %{x:.4~g} s<extra>%{y}</extra>" });
    const top = innerWidth < 640 ? 92 : 40; // room for the legend and the tools
    const byTier = state.fleet.name.length > MAX_ROWS, hidden = byTier ? look.num_tiers - rows.length : 0;
    const edge = ({ end_s }) => ({ type: "line", x0: end_s, x1: end_s, y0: 0, y1: 1, yref: "paper", layer: "below", line: { color: EDGE, width: 0.6 } });
    return {
      alt: `Schedule of the first ${numRounds} rounds of ${fine(look.round_s)} s. Tier j is merged at the end of every j-th round: ${tierCounts(state)}.`, height: top + 76 + 30 * Math.max(rows.length, 3), zoom: true,
      caption: "A bar begins when clients get the newest model; ◆ is where their updates are merged." + (byTier ? " A tier's bar is as long as its slowest client takes." : "") + " Drag or use the tools to zoom in, double-click to zoom out.",
      traces,
      layout: {
        barmode: "overlay", shapes: rounds.map(edge), xaxis: { title: { text: "time (s)" }, range: [0, horizon_s * 1.01] },
        yaxis: { type: "category", autorange: "reversed", categoryorder: "array", categoryarray: rows.map(({ label }) => label), showgrid: false, ticklabelstandoff: 4 },
        margin: { l: 60, r: 8, t: top, b: 44 }, annotations: hidden > 0 ? [{ text: `${number(hidden)} slower tiers are not drawn`, xref: "paper", x: 1, y: 0, yref: "paper", yshift: -36, showarrow: false, xanchor: "right" }] : [],
      },
    };
  }

  /** Updates per 1000 s and staleness over the deadline, with the one chosen now marked. */
  function curvesChart({ fleet, curve, values, deadline_s, look, fedavg, proposed_s }) {
    const x = curve.map((row) => row.deadline_s), count = fleet.name.length, [first, last] = [values[0], values.at(-1)];
    const here_s = Math.min(Math.max(deadline_s, first), last);
    const line = (name, y, colour, more = {}) => ({ type: "scatter", mode: "lines", name, x, y, line: { color: colour, width: 2.2, ...more.line }, hovertemplate: `${name}: %{y:.3~g} at τ = %{x} s<extra></extra>`, ...more.trace });
    const dot = (y, yaxis) => ({ type: "scatter", mode: "markers", x: [here_s], y: [y], yaxis, showlegend: false, hoverinfo: "skip", marker: { size: 11, color: COLOURS.lesson, line: { width: 2, color: "#fff" } } });
    const upright = (value, dash) => ({ type: "line", x0: value, x1: value, y0: 0, y1: 1, yref: "paper", line: { color: dash ? EDGE : COLOURS.lesson, width: dash ? 1 : 1.5, dash: dash ? "dot" : "solid" } });
    return {
      alt: `Updates per 1000 seconds fall from ${fine(curve[0]?.updates_per_1000s ?? null)} to ${fine(fedavg.updates_per_1000s)} and staleness from ${fine(curve[0]?.staleness ?? null)} to 0 versions as the deadline grows from ${fine(first)} to ${fine(last)} s; now it is ${seconds(deadline_s)}.`,
      height: 420, caption: `The line is the deadline chosen now, dotted the proposed one, ${seconds(proposed_s)}. Click on a curve to go there.`,
      traces: [
        line("LESSON", curve.map((row) => row.updates_per_1000s), COLOURS.lesson), line("FedAvg", x.map(() => fedavg.updates_per_1000s), COLOURS.fedavg, { line: { dash: "dash" } }),
        line("FedCS", curve.map((row) => (row.served_by_fedcs ? row.served_by_fedcs * count * 1000 / row.deadline_s : null)), COLOURS.fedcs, { line: { dash: "dot" } }),
        line("staleness of LESSON", curve.map((row) => row.staleness), COLOURS.lesson, { trace: { yaxis: "y2", showlegend: false } }),
        dot(look.updates_per_1000s, "y"), dot(look.staleness, "y2"),
      ],
      layout: {
        xaxis: { type: "log", title: { text: "deadline τ (s)" }, range: [Math.log10(first), Math.log10(last * 1.02)], anchor: "y2", tickvals: roundNumbers(first, last) },
        yaxis: { domain: [0.47, 1], rangemode: "tozero", title: { text: "updates / 1000 s" } }, yaxis2: { domain: [0, 0.4], rangemode: "tozero", title: { text: "versions old" } },
        shapes: [upright(proposed_s, true), upright(here_s, false)], margin: { l: 56, r: 8, t: 34, b: 44 },
      },
    };
  }

  /** 1, 2 and 5 times powers of ten between two numbers. */
  function roundNumbers(first, last) {
    const powers = Array.from({ length: Math.ceil(Math.log10(last / first)) + 2 }, (_, place) => Math.floor(Math.log10(first)) + place);
    return powers.flatMap((power) => (last / first > 1e4 ? [1] : [1, 2, 5]).map((digit) => Number(`${digit}e${power}`))).filter((value) => value >= first && value <= last);
  }

  return { mount };
})();
