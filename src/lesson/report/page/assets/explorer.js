"use strict";
/* The deadline explorer: a slider for τ, and its effect on a fleet. `Explorer.mount(section, data)`. */
const Explorer = (() => {
  const { h, number } = Page;
  const { seconds } = ExplorerWords;
  const CURVE_POINTS = 90;

  /** Put the explorer into a section. `data` comes from `fleet_data` in lesson.report.page.plan_page. */
  function mount(section, data) {
    const state = {};
    const picker = fleetPicker(
      section,
      (fleet, origin) => begin(measured(fleet, origin)),
      () => begin(given(data)),
    );
    const controls = deadlineControls(choose, (ensure) => {
      state.ensureFirstTier = ensure;
      beginAt(state.deadline_s);
    });
    const answer = h("p", { class: "answer" }),
      now = h("p", { class: "now", "aria-live": "polite" });
    const cards = h("div", { class: "cards" }),
      comparison = h("div", {}),
      tiers = h("div", {});
    section.append(
      picker.element,
      answer,
      ...controls.elements,
      now,
      cards,
      h("div", { class: "pair" }, comparison, tiers),
    );
    const charts = ExplorerCharts.mount(section, choose),
      deploy = ExplorerDeploy.mount(section);

    /** Switch to another fleet, at its own deadline. */
    function begin(fleetState) {
      Object.assign(state, fleetState, {
        advice: { proposed_s: Tiers.proposeDeadline(fleetState.fleet.latency_s), ...fleetState.advice },
        fedavg: Tiers.lookAtFedavg(fleetState.fleet, fleetState.advice?.fedavg_round_s),
        values: scale(fleetState.fleet),
        reach_s: Tiers.reach(fleetState.fleet.latency_s),
      });
      picker.show(state);
      beginAt(fleetState.deadline_s ?? state.advice.proposed_s);
    }

    /** Compute what does not depend on the deadline, then show this deadline. */
    function beginAt(deadline_s) {
      const step = Math.max(1, Math.floor(state.values.length / CURVE_POINTS));
      const chosen = state.values.filter((_, place) => (state.values.length - 1 - place) % step === 0);
      state.curve = chosen.map((value) => lookAt(value)).filter(({ tiers }) => tiers.length);
      answer.replaceChildren(...ExplorerWords.answer(state, lookAt(state.advice.proposed_s)));
      controls.begin(state);
      choose(deadline_s);
    }

    function lookAt(deadline_s) {
      return Tiers.lookAtDeadline(state.fleet, deadline_s, state.ensureFirstTier);
    }

    function choose(deadline_s) {
      const look = lookAt(deadline_s);
      if (!look.tiers.length) {
        controls.reject(`the deadline must be longer, got ${deadline_s} s: every client would need more than 2^53 rounds`);
        return;
      }
      Object.assign(state, {
        deadline_s,
        look,
        fedcs: Tiers.lookAtFedcs(state.fleet, look),
        colors: Page.tierColours(look.num_tiers),
      });
      controls.show(state);
      now.textContent = ExplorerWords.now(state);
      cards.replaceChildren(...ExplorerWords.cards(state));
      comparison.replaceChildren(ExplorerWords.comparison(state));
      tiers.replaceChildren(...ExplorerWords.tiers(state));
      charts.show(state);
      deploy.show(state);
    }

    begin(given(data));
  }

  function given(data) {
    const { clients } = data,
      latency_s = clients.latency_s.map((value) => value ?? Infinity);
    return {
      fleet: { ...clients, latency_s },
      source: data.source,
      flags: data.flags ?? null,
      recording: data.recording ?? null,
      original: true,
      ensureFirstTier: data.ensure_first_tier,
      deadline_s: data.deadline_s ?? Infinity,
      numClients: data.num_clients ?? latency_s.length,
      advice: data.advice,
    };
  }

  /** A measured fleet is left unchanged: no client is promoted to tier 1 unless the user asks for it. */
  function measured(fleet, origin) {
    const numClients = fleet.name.length;
    return { fleet, ...origin, original: false, ensureFirstTier: false, deadline_s: null, numClients, advice: null };
  }

  /** Increasing deadlines of two digits, from a quarter of the lowest latency to the highest; outliers are one last step. */
  function scale({ latency_s }) {
    const last = Tiers.roundUp(Tiers.reach(latency_s)),
      slowest = Tiers.roundUp(Tiers.slowest(latency_s));
    const values = [Tiers.roundUp(Math.max(Tiers.smallest(latency_s) / 4, last / 1e5))];
    while (values.at(-1) < last) values.push(Math.min(last, Tiers.roundUp(values.at(-1) * 1.005)));
    return slowest > last ? [...values, slowest] : values;
  }

  /** The slider, field and buttons for the deadline, and a checkbox that keeps tier 1 from being empty. */
  function deadlineControls(choose, ensure) {
    let state = null,
      waiting = null;
    const slider = h("input", {
      type: "range",
      id: "deadline-slider",
      min: "0",
      step: "1",
      "aria-label": "Deadline τ",
      input: () => later(state.values[slider.value]),
    });
    const field = h("input", {
      type: "number",
      id: "deadline-field",
      min: "0",
      step: "any",
      inputmode: "decimal",
      placeholder: "none",
      input: typed,
    });
    const alert = h("p", { class: "wrong", role: "alert" });
    const proposed = h("button", { type: "button", click: () => choose(state.advice.proposed_s) });
    const none = h("button", { type: "button", click: () => choose(Infinity) }, "No deadline (FedAvg)");
    const box = h("input", { type: "checkbox", change: () => ensure(box.checked) });

    function later(deadline_s) {
      // at most one redraw per frame
      if (waiting === null)
        requestAnimationFrame(() => {
          const value = waiting;
          waiting = null;
          if (value !== null) choose(value);
        });
      waiting = deadline_s;
      slider.setAttribute("aria-valuetext", seconds(deadline_s));
    }

    function typed() {
      const value = Number(field.value);
      if (field.value && value > 0) {
        later(value);
        return;
      }
      waiting = null; // redrawing the valid start of a number, as the 1 of 1e-9, would overwrite the field
      reject(`the deadline must be a number > 0, got '${field.value}'`);
    }

    function reject(message) {
      alert.textContent = message;
      field.setAttribute("aria-invalid", "true");
    }

    function begin(newState) {
      state = newState;
      slider.max = String(state.values.length - 1);
      proposed.textContent = `Proposed: ${seconds(state.advice.proposed_s)}`;
      box.checked = state.ensureFirstTier;
    }

    function show({ deadline_s, values, look }) {
      const place = values.findIndex((value) => value >= deadline_s);
      slider.value = String(place < 0 ? values.length - 1 : place);
      slider.setAttribute(
        "aria-valuetext",
        `${seconds(deadline_s)}, ${look.num_tiers} ${look.num_tiers === 1 ? "tier" : "tiers"}`,
      );
      if (Number(field.value) !== deadline_s) field.value = Number.isFinite(deadline_s) ? String(deadline_s) : "";
      field.removeAttribute("aria-invalid");
      alert.textContent = "";
    }

    const elements = [
      h(
        "div",
        { class: "deadline" },
        h("label", { for: "deadline-field" }, "Deadline τ"),
        h("span", {}, field, " s"),
        slider,
      ),
      alert,
      h(
        "div",
        { class: "controls" },
        proposed,
        none,
        h("label", {}, box, " if no client meets the deadline, promote the fastest to tier 1"),
      ),
    ];
    return { elements, begin, show, reject };
  }

  /** Shows where the fleet comes from, and loads another one. */
  function fleetPicker(section, take, back) {
    const told = h("span", {}),
      alert = h("p", { class: "wrong", role: "alert" });
    const input = h("input", {
      type: "file",
      accept: ".csv,.jsonl,text/csv,text/plain",
      class: "visually-hidden",
      change: () => {
        read(input.files[0]);
        input.value = "";
      },
    });
    const again = h(
      "button",
      {
        type: "button",
        hidden: true,
        click: () => {
          alert.textContent = "";
          back();
        },
      },
      "Back to the original fleet",
    );
    const example = `data:text/csv;charset=utf-8,${encodeURIComponent(FleetCsv.EXAMPLE)}`;
    const element = h(
      "div",
      { class: "drop" },
      h("p", {}, told),
      h(
        "p",
        {},
        "To see your own fleet, drop a CSV file of measured latencies (",
        h("a", { download: "fleet.csv", href: example }, "example"),
        ") or a recording, flight.jsonl, here or ",
        h("label", { class: "file" }, "choose a file", input),
        ". The file stays in your browser.",
      ),
      again,
      alert,
    );

    async function read(file) {
      if (!file) return;
      element.setAttribute("aria-busy", "true");
      try {
        const bytes = await file.arrayBuffer(),
          isRecording = FlightJsonl.looksLikeOne(bytes);
        const fleet = (isRecording ? FlightJsonl : FleetCsv).read(bytes, file.name);
        alert.textContent = "";
        take(
          fleet,
          isRecording
            ? { source: `${file.name}, median latencies`, flags: null, recording: file.name }
            : { source: file.name, flags: `--latencies ${ExplorerDeploy.shellWord(file.name)}`, recording: null },
        );
      } catch (error) {
        alert.textContent = error.message;
      }
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
      told.textContent =
        `${number(numClients)} ${numClients === 1 ? "client" : "clients"} (${source}).` +
        (held < numClients
          ? ` All numbers below are for a sample of ${number(held)} of them, evenly spaced by latency.`
          : "");
      again.hidden = original;
    }
    return { element, show };
  }

  return { mount };
})();
