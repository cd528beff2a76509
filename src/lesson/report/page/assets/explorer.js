"use strict";
/* The deadline explorer: a slider over the deadlines that `lesson plan` computed, and the effect of each on a fleet. */
window.Explorer = (() => {
  const { h, number, seconds } = Page;

  /** Put the explorer into a section. `data` comes from `explorer_data` in lesson.report.page.explorer. */
  function mount(section, data) {
    const state = prepared(data);
    const controls = deadlineControls(state, show);
    const [now, cards, comparison, tiers] = ["p", "div", "div", "div"].map((tag) => h(tag));
    now.className = "now";
    now.setAttribute("aria-live", "polite");
    section.append(
      h("p", {}, clientsOf(state)),
      h("p", { class: "answer" }, ...ExplorerWords.answer(state, state.rows[nearest(state, data.advice.proposed_s)])),
      ...controls.elements,
      now,
      cards,
      h("div", { class: "pair" }, comparison, tiers),
    );
    const charts = ExplorerCharts.mount(section, (deadline_s) => controls.pick(deadline_s));
    const deploy = ExplorerDeploy.mount(section);

    function show(place) {
      state.row = state.rows[place];
      state.colors = Page.tierColors(state.row.tiers.length);
      controls.show(place);
      now.textContent = ExplorerWords.now(state);
      cards.replaceChildren(ExplorerWords.cards(state));
      comparison.replaceChildren(ExplorerWords.comparison(state));
      tiers.replaceChildren(...ExplorerWords.tiers(state));
      charts.show(state);
      deploy.show(state);
    }

    controls.pick(data.deadline_s ?? Infinity);
  }

  /** The data with infinite times, and each tier of a deadline as a run of clients, which are sorted by latency. */
  function prepared(data) {
    const latency_s = data.clients.latency_s.map((value) => value ?? Infinity);
    const rows = data.deadlines.map((row) => {
      const deadline_s = row.deadline_s ?? Infinity;
      let end = 0;
      const tiers = row.tiers.map(([tier, count]) => {
        const begin = end;
        end += count;
        const fastest_s = row.promoted && begin === 0 ? deadline_s : latency_s[begin];
        return { tier, count, begin, fastest_s, slowest_s: Math.max(fastest_s, latency_s[end - 1]) };
      });
      return { ...row, deadline_s, tiers, num_served: end };
    });
    return { ...data, fleet: { ...data.clients, latency_s }, rows };
  }

  function clientsOf({ fleet, source, num_clients: all }) {
    const shown = fleet.name.length;
    const sample = ` All numbers below are for a sample of ${number(shown)} of them, evenly spaced by latency.`;
    return `${number(all)} ${all === 1 ? "client" : "clients"} (${source}).${shown < all ? sample : ""}`;
  }

  /** The place of the computed deadline that is nearest to another, by their ratio. */
  function nearest({ rows }, deadline_s) {
    if (deadline_s === Infinity) return rows.length - 1;
    const distance = (place) => Math.abs(Math.log(rows[place].deadline_s / deadline_s));
    return [...rows.keys()].reduce((best, place) => (distance(place) < distance(best) ? place : best));
  }

  /** The slider, field and buttons for the deadline. */
  function deadlineControls(state, draw) {
    const { rows, advice } = state;
    let waiting = null;
    let typed_s = null; // what the field contains; null if another control was used since
    const slider = h("input", {
      type: "range",
      id: "deadline-slider",
      min: "0",
      max: String(rows.length - 1),
      step: "1",
      "aria-label": "Deadline τ",
      input: () => later(Number(slider.value)),
    });
    const field = h("input", {
      type: "number",
      id: "deadline-field",
      min: "0",
      step: "any",
      inputmode: "decimal",
      placeholder: "none",
      input: typed,
      change: () => typed_s > 0 && write(rows[slider.value].deadline_s),
    });
    const note = h("p", { role: "alert" });
    const button = (text, deadline_s) => h("button", { type: "button", click: () => pick(deadline_s) }, text);

    function pick(deadline_s) {
      typed_s = null;
      draw(nearest(state, deadline_s));
    }

    /** Draw a deadline at most once per frame. */
    function later(place, newTyped_s = null) {
      if (waiting === null)
        requestAnimationFrame(() => {
          if (waiting !== null) draw(waiting);
          waiting = null;
        });
      waiting = place;
      typed_s = newTyped_s;
    }

    function typed() {
      const value = Number(field.value);
      if (value > 0) return later(nearest(state, value), value);
      waiting = null;
      tell(`The deadline must be a number > 0, got '${field.value}'.`, true);
      field.setAttribute("aria-invalid", "true");
    }

    function write(deadline_s) {
      field.value = Number.isFinite(deadline_s) ? String(deadline_s) : "";
    }

    function tell(text, isWrong = false) {
      note.textContent = text;
      note.className = isWrong ? "wrong" : "quiet";
    }

    function show(place) {
      const { deadline_s, num_tiers } = rows[place];
      slider.value = String(place);
      slider.setAttribute(
        "aria-valuetext",
        `${seconds(deadline_s)}, ${num_tiers} ${num_tiers === 1 ? "tier" : "tiers"}`,
      );
      field.removeAttribute("aria-invalid");
      if (typed_s === null) write(deadline_s);
      const isOther = typed_s !== null && typed_s !== deadline_s;
      const command = `lesson plan with --deadline ${typed_s} computes this one.`;
      tell(isOther ? `The nearest computed deadline is ${deadline_s} s. ${command}` : "");
    }

    const elements = [
      h("div", { class: "deadline" }, h("label", { for: field.id }, "Deadline τ"), h("span", {}, field, " s"), slider),
      note,
      h(
        "div",
        { class: "controls" },
        button(`Proposed: ${seconds(advice.proposed_s)}`, advice.proposed_s),
        button("No deadline (FedAvg)", Infinity),
      ),
    ];
    return { elements, pick, show };
  }

  return { mount };
})();
