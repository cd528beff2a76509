"use strict";
/* Charts of the metric, schedule and latency. */
window.Course = (() => {
  const { data, h, section, table, chart, canvas, upright, choice, number, plain } = Page;
  const { groups, contenders, metric } = Looks;

  function curves() {
    if (!data.curves.some((curve) => curve.time_s.at.length)) return;
    const lead =
      `${metric.title} on the test data${shown()}. Hover to read the values of all lines; drag to zoom in, double-click to zoom out.` +
      (data.counts_merges.length ? ` For ${data.counts_merges.join(", ")}, aggregations are counted as rounds.` : "") +
      (data.hidden
        ? ` The ${groups.length} ${metric.best} of ${groups.length + data.hidden} configurations are drawn.`
        : "");
    const made = section(metric.section, metric.title, lead);
    const axes = { time_s: `${data.time} (s)`, round: "global rounds" };
    const place = h("div"),
      draw = canvas(place);
    const pick = (over) => {
      const traces = data.curves.flatMap((curve, at) =>
        Page.band(curve[over], { ...groups[at], name: groups[at].label, hover: metric.hover }),
      );
      const layout = {
        hovermode: "x unified",
        xaxis: { title: { text: axes[over] }, rangemode: "tozero" },
        yaxis: { title: { text: `test ${metric.name}` }, ...metric.axis },
      };
      const alt = `Test ${metric.name} over ${axes[over]}: ${data.curves.map((curve, at) => `${groups[at].label} ends at ${metric.value(curve[over].mean.at(-1))}`).join(", ")}.`;
      draw({ alt, traces, layout, height: 430, numbers: curveNumbers() });
    };
    made.append(place);
    place.before(
      h(
        "div",
        { class: "controls" },
        choice(
          "Horizontal axis",
          [
            ["time_s", `over ${data.time}`],
            ["round", "over rounds"],
          ],
          pick,
        ),
      ),
    );
  }

  /** What the lines and bands are, if there are several seeds. */
  function shown() {
    const seeds = groups.map((group) => group.seeds),
      most = Math.max(...seeds);
    if (most === 1) return "";
    const over = Math.min(...seeds) === most ? `${most} seeds` : "seeds";
    return most < 3 ? `, mean over ${over}` : `, mean and 95 % confidence interval over ${over}`;
  }

  function curveNumbers() {
    const at = [0.1, 0.25, 0.5, 0.75, 1];
    const end = Math.max(...data.curves.map((curve) => curve.time_s.at.at(-1) ?? 0));
    return table(
      `Mean ${metric.name} by ${data.time}`,
      [contenders, ...at.map((share) => `${number(share * end)} s`)],
      data.curves.map((curve, place) => [
        groups[place].label,
        ...at.map((share) => metric.value(lastBefore(curve.time_s, share * end))),
      ]),
    );
  }

  function lastBefore(curve, moment) {
    let found;
    curve.at.forEach((at, place) => {
      if (at <= moment + 1e-9) found = curve.mean[place];
    });
    return found;
  }

  function schedule() {
    const there = data.schedule.map((one, place) => [one, place]).filter(([one]) => one?.pieces.length);
    if (!there.length) return;
    const made = section(
      "schedule",
      "Schedule",
      "Each row is a client, with the fastest at the top. A client trains, uploads and may wait for the end of the round; a diamond marks the aggregation of its update. Drag to zoom in." +
        someDrawn(there),
      "Schedule",
    );
    const place = h("div"),
      draw = canvas(place);
    const pick = (at) => {
      const [traces, layout] = work(data.schedule[at], groups[at].label);
      const alt = `Schedule of ${groups[at].label}: ${data.schedule[at].pieces.length} updates of ${data.schedule[at].clients.length} clients.`;
      draw({ alt, traces, layout, height: 520 });
    };
    made.append(place);
    there.sort(
      ([, one], [, other]) => groups[other].label.startsWith("lesson") - groups[one].label.startsWith("lesson"),
    );
    const controls = choice(
      "Strategy",
      there.map(([, at]) => [at, groups[at].label]),
      pick,
    );
    if (there.length > 1) place.before(h("div", { class: "controls" }, controls));
  }

  function someDrawn(there) {
    const [{ clients, num_clients: all }] = there[0];
    return clients.length < all ? ` ${clients.length} of ${number(all)} clients are shown.` : "";
  }

  function work({ pieces, ends_s: ends, until_s: until, clients, names }, label) {
    const row = new Map(clients.map((client, place) => [client, place]));
    const name = new Map(clients.map((client, place) => [client, plain(`${names[place]}`)]));
    const bar = (from, to, title, color, those = pieces.filter((piece) => piece[2] !== null)) => ({
      type: "bar",
      orientation: "h",
      name: title,
      marker: { color: color },
      base: those.map((piece) => piece[from]),
      x: those.map((piece) => piece[to] - piece[from]),
      y: those.map((piece) => row.get(piece[0])),
      showlegend: those.length > 0,
      hovertemplate: those.map(
        (piece) =>
          `client ${name.get(piece[0])}, ${title}: ${number(piece[from], 1)} to ${number(piece[to], 1)} s<extra></extra>`,
      ),
    });
    const whole = pieces.filter((piece) => piece[2] === null);
    const merged = {
      type: "scatter",
      mode: "markers",
      name: "aggregated",
      x: pieces.map((piece) => piece[4]),
      y: pieces.map((piece) => row.get(piece[0])),
      marker: { symbol: "diamond", size: 6, color: "#d55e00" },
      hovertemplate: "aggregated at %{x:.1f} s<extra></extra>",
    };
    const every = Math.max(1, Math.ceil(clients.length / 25));
    return [
      [
        bar(1, 2, "trains", "#4c86b8"),
        bar(2, 3, "uploads", "#e0a030"),
        bar(1, 3, "trains and uploads", "#7a9e8a", whole),
        bar(3, 4, "waits", "rgba(128,128,128,0.28)", pieces),
        merged,
      ],
      {
        barmode: "overlay",
        bargap: 0.25,
        xaxis: { title: { text: `${data.time} (s), ${plain(label)}` }, range: [0, until] },
        yaxis: {
          autorange: "reversed",
          tickvals: clients.map((_, place) => place).filter((place) => place % every === 0),
          ticktext: clients.map((client) => `${name.get(client)}`).filter((_, place) => place % every === 0),
          title: { text: "client, from fast to slow" },
        },
        shapes: ends.map((end) => ({
          ...upright(end, { width: 0.6, color: "rgba(128,128,128,0.5)" }),
          layer: "below",
        })),
      },
    ];
  }

  function latencies() {
    if (!data.latencies) return;
    const made = section(
      "latency",
      "Latency",
      "Distribution of the time that clients need for local training, for the upload, and for both together." +
        (data.times_vary ? " Times vary during these runs; these are the server's first estimates." : ""),
      "Latency",
    );
    const names = {
      compute_s: ["compute time", "#4c86b8", "solid"],
      upload_s: ["upload time", "#e0a030", "solid"],
      latency_s: ["latency (sum)", "#888888", "dash"],
    };
    const there = Object.keys(names).filter((name) => data.latencies[name]);
    const deadline = data.fleet?.deadline_s;
    const end = Math.max(...there.map((name) => data.latencies[name].x.at(-1)));
    chart(made, {
      alt: `Density of latencies: ${there.map((name) => names[name][0]).join(", ")}, from 0 to ${number(end)} s.`,
      traces: there.map((name) => ({
        x: data.latencies[name].x,
        y: data.latencies[name].y,
        name: names[name][0],
        mode: "lines",
        fill: name === "latency_s" ? "none" : "tozeroy",
        line: { color: names[name][1], dash: names[name][2] },
        hovertemplate: "%{x:.1f} s",
      })),
      layout: {
        xaxis: { title: { text: "time per client (s)" }, rangemode: "tozero" },
        yaxis: { title: { text: "density (1/s)" }, rangemode: "tozero" },
        shapes: deadline ? Page.multiples(deadline, end, 12) : [],
      },
      caption: deadline ? "Dotted lines are multiples of the deadline, which separate the tiers." : null,
    });
  }

  return { curves, schedule, latencies };
})();
