"use strict";
/* Shared by all pages: elements, sections, tables, charts that follow the theme, and number formats. */
window.Page = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const charts = [];
  const themes = ["auto", "light", "dark"];
  const LONG = 48; // characters from which a cell of a table is wrapped
  const system = matchMedia("(prefers-color-scheme: dark)");
  let theme = "auto";

  /** An element with attributes (functions are listeners) and children, which may be text; null is left out. */
  function h(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(name, value);
      else if (value !== null && value !== undefined && value !== false)
        element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
  }

  /** A section of the page with a heading, an introductory paragraph, and a link in the navigation. */
  function section(id, title, lead, short = title) {
    const made = h(
      "section",
      { id, "aria-labelledby": `${id}-title` },
      h("h2", { id: `${id}-title` }, title),
      lead ? h("p", {}, lead) : null,
    );
    document.getElementById("main").append(made);
    const nav = document.getElementById("sections");
    if (!nav.firstChild) nav.append(h("ul"));
    nav.firstChild.append(h("li", {}, h("a", { href: `#${id}` }, short)));
    return made;
  }

  /** A table: `columns` are headings, `rows` lists of text or elements, the first of each a heading. */
  function table(caption, columns, rows) {
    return h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      h(
        "table",
        {},
        h("caption", {}, caption),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            columns.map((name) => h("th", { scope: "col" }, name)),
          ),
        ),
        h(
          "tbody",
          {},
          rows.map((row) =>
            h(
              "tr",
              {},
              row.map((cell, place) => h(place ? "td" : "th", place ? {} : { scope: "row" }, cell)),
            ),
          ),
        ),
      ),
    );
  }

  /** Cards with a value, its label and a note each; null if there is no note. */
  function cards(all) {
    const card = ([value, label, note]) =>
      h(
        "div",
        { class: "card" },
        h("div", { class: "value" }, value),
        h("div", { class: "label" }, label),
        h("div", { class: "note quiet" }, note),
      );
    return h("div", { class: "cards" }, all.map(card));
  }

  function list(items, attributes = {}) {
    return h(
      "ul",
      attributes,
      items.map((item) => h("li", {}, item)),
    );
  }

  /** A table made by Table.to_data, with a button in each heading that sorts by its column; unknown values come last.
      `first` decorates the first cell of a row; `details` returns what opening a row shows. Both get its number. */
  function sortable(caption, { columns, align, rows }, { first = (_, text) => text, details = null } = {}) {
    const open = new Set();
    const order = { column: null, down: false };
    const body = h("tbody");
    const numeric = columns.map((_, at) => rows.some((row) => row[at][1] !== null));
    const heads = columns.map((name, at) => {
      const button = h("button", { type: "button", class: "sort", click: () => sort(at) }, name);
      return h("th", { scope: "col", class: align[at] }, button);
    });

    function sort(at) {
      Object.assign(order, { column: at, down: order.column === at && !order.down });
      heads.forEach((head, place) => {
        if (place === at) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      fill();
    }

    function compared(one, other) {
      const at = order.column;
      const [[text, value], [otherText, otherValue]] = [rows[one][at], rows[other][at]];
      if (!numeric[at]) return (order.down ? -1 : 1) * text.localeCompare(otherText, "en", { numeric: true });
      if (value === null || otherValue === null) return (value === null) - (otherValue === null);
      return (order.down ? -1 : 1) * (value - otherValue);
    }

    function toggle(row) {
      if (!open.delete(row)) open.add(row);
      fill();
      body.querySelector(`[data-row="${row}"]`).focus();
    }

    function heading(row) {
      const text = first(row, rows[row][0][0]);
      if (!details) return text;
      const expanded = open.has(row);
      return h(
        "button",
        { type: "button", class: "open", "data-row": row, "aria-expanded": String(expanded), click: () => toggle(row) },
        h("span", { "aria-hidden": "true" }, expanded ? "▾ " : "▸ "),
        text,
      );
    }

    function line(row) {
      const kinds = rows[row].map(([text], at) => `${align[at]}${text.length > LONG ? " long" : ""}`);
      const cells = rows[row].slice(1).map(([text], at) => h("td", { class: kinds[at + 1] }, text));
      const shown = h("tr", {}, h("th", { scope: "row", class: kinds[0] }, heading(row)), cells);
      if (!open.has(row)) return [shown];
      return [shown, h("tr", { class: "more" }, h("td", { colspan: columns.length }, details(row)))];
    }

    function fill() {
      const places = rows.map((_, row) => row);
      if (order.column !== null) places.sort(compared);
      body.replaceChildren(...places.flatMap(line));
    }

    fill();
    return h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      h("table", { class: "sortable" }, h("caption", {}, caption), h("thead", {}, h("tr", {}, heads)), body),
    );
  }

  /** Sections with tables, pictures and commands, made by Section.to_data. */
  function sections(those) {
    those.forEach(({ title, lead, items }, place) => {
      const made = section(`section-${place + 1}`, title, lead);
      for (const { heading, command, table: rows, png } of items) {
        made.append(h("h3", {}, heading));
        if (rows) made.append(sortable(rows.title, rows));
        if (png) {
          const src = `data:image/png;base64,${png}`;
          made.append(h("figure", {}, h("img", { class: "figure", src, alt: heading, loading: "lazy" })));
        }
        if (command) made.append(quoted(command, `the command for ${heading}`));
      }
    });
  }

  /** A chart that follows the theme. `alt` describes it in words; `numbers`, a table, is folded below it.
      Without `zoom` it has no toolbar and does not react to dragging. */
  function chart(parent, { alt, height = 380, traces, layout = {}, numbers = null, caption = null, zoom = true }) {
    const place = h("div", {
      class: zoom ? "chart zooms" : "chart",
      role: "img",
      "aria-label": alt,
      style: `height:${height}px`,
    });
    parent.append(
      h(
        "figure",
        {},
        place,
        caption ? h("figcaption", {}, caption) : null,
        numbers ? h("details", {}, h("summary", {}, "Show the numbers"), numbers) : null,
      ),
    );
    const still = zoom ? {} : { dragmode: false };
    const one = { place, traces, layout: { ...layout, ...still } };
    charts.push(one);
    const tools = zoom
      ? { modeBarButtons: [["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"]] }
      : { displayModeBar: false };
    Plotly.newPlot(place, traces, themed(one.layout), {
      displaylogo: false,
      showSendToCloud: false,
      plotlyServerURL: "",
      ...tools,
    });
    new ResizeObserver(() => Plotly.Plots.resize(place)).observe(place);
    return {
      place,
      update(newTraces, newLayout = one.layout, newAlt = alt) {
        Object.assign(one, { traces: newTraces, layout: { ...newLayout, ...still } });
        place.setAttribute("aria-label", newAlt);
        return Plotly.react(place, newTraces, themed(one.layout));
      },
    };
  }

  /** A function that draws a chart on its first call and updates its description, traces and layout on later ones. */
  function canvas(parent) {
    let drawn = null;
    return (options) => {
      if (drawn) drawn.update(options.traces, options.layout, options.alt);
      else drawn = chart(parent, options);
    };
  }

  /** A vertical line in a chart. */
  function upright(x, look) {
    return { type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: look };
  }

  /** Lines at the multiples of a time up to an end, at most a number of them. */
  function multiples(step, end, most, look = { dash: "dot", width: 1, color: "rgba(127,137,150,.7)" }) {
    const count = Math.min(most, Math.floor((end / step) * (1 + 1e-9)));
    return Array.from({ length: count }, (_, place) => ({ ...upright((place + 1) * step, look), layer: "below" }));
  }

  /** The traces of a mean and, if it has one, of its 95 % band. `curve` has the lists at, mean, low and high. */
  function band(curve, { name, color, dash, hover }) {
    const shared = { x: curve.at, legendgroup: name, mode: "lines" };
    const mean = {
      ...shared,
      y: curve.mean,
      name: plain(name),
      mode: curve.at.length > 3 ? "lines" : "lines+markers",
      line: { color: color, dash, width: 2 },
      hovertemplate: hover,
    };
    if (!curve.low) return [mean];
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
    const edge = { ...shared, line: { width: 0, color: color }, showlegend: false, hoverinfo: "skip" };
    return [
      { ...edge, y: curve.low },
      { ...edge, y: curve.high, fill: "tonexty", fillcolor: `rgba(${r},${g},${b},0.18)` },
      mean,
    ];
  }

  function themed(layout) {
    const [ink, quiet, line] = ["--ink", "--quiet", "--line"].map((name) =>
      getComputedStyle(document.documentElement).getPropertyValue(name).trim(),
    );
    const narrow = innerWidth < 640;
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line, automargin: true };
    const full = {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, size: narrow ? 11 : 13, family: "system-ui, sans-serif" },
      margin: { l: 52, r: 12, t: 16, b: 44 },
      hoverlabel: { font: { size: 12 } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: quiet, activecolor: ink },
      dragmode: narrow ? false : "zoom",
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, bgcolor: "rgba(0,0,0,0)" },
      colorway: [quiet],
      ...layout,
    };
    for (const name of Object.keys(full)
      .concat(["xaxis", "yaxis"])
      .filter((key) => /^[xy]axis\d*$/.test(key)))
      full[name] = { ...axis, ...(full[name] || {}) };
    return full;
  }

  function dark() {
    return theme === "dark" || (theme === "auto" && system.matches);
  }

  function applyTheme() {
    wear(dark() ? "dark" : "light");
  }

  function wear(colors) {
    document.documentElement.dataset.theme = colors;
    const button = document.getElementById("theme");
    button.textContent = { auto: "Colors: system", light: "Colors: light", dark: "Colors: dark" }[theme];
    for (const { place, traces, layout } of charts) Plotly.react(place, traces, themed(layout));
  }

  /** Buttons of which one is pressed. `options` are [value, text]; `pick` is called with the chosen value, first at once. */
  function choice(label, options, pick) {
    const buttons = options.map(([value, text]) =>
      h("button", { type: "button", "aria-pressed": "false", click: () => press(value) }, text),
    );
    function press(value) {
      for (const [place, button] of buttons.entries())
        button.setAttribute("aria-pressed", String(options[place][0] === value));
      pick(value);
    }
    const group = h("div", { class: "choice", role: "group", "aria-label": label }, buttons);
    press(options[0][0]);
    return group;
  }

  /** Copy text to the clipboard and return whether it worked; pages opened from disk may need the old command. */
  async function copied(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = h("textarea", { class: "visually-hidden" });
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  /** Text with a button that copies it. */
  function quoted(text, label) {
    const button = h("button", { type: "button", "aria-label": `Copy ${label}`, click: copy }, "Copy");
    async function copy() {
      button.textContent = (await copied(text)) ? "Copied" : "Select and press Ctrl-C";
      button.focus();
      setTimeout(() => {
        button.textContent = "Copy";
      }, 1500);
    }
    return h("div", { class: "quoted" }, h("pre", { tabindex: "0" }, h("code", {}, text)), button);
  }

  /** Colors of the tiers, from fast to slow. */
  function tierColors(count) {
    const anchors = data.tier_anchors;
    return Array.from({ length: count }, (_, place) => {
      const at = count > 1 ? (place * (anchors.length - 1)) / (count - 1) : 0;
      const low = Math.floor(at);
      const high = anchors[Math.min(low + 1, anchors.length - 1)];
      const mixed = anchors[low].map((value, channel) => Math.round(value + (at - low) * (high[channel] - value)));
      return `rgb(${mixed.join(",")})`;
    });
  }

  /** A number with separated thousands and a given number of decimals; – if it is unknown. */
  function number(value, digits = 0) {
    return value === null || value === undefined || !Number.isFinite(value)
      ? "–"
      : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  }

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

  /** Text escaped for charts, which interpret some markup. */
  function plain(text) {
    return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  }

  function swatch(color) {
    return h("span", { class: "swatch", "aria-hidden": "true", style: `background:${color}` });
  }

  document.getElementById("title").textContent = data.title;
  document.getElementById("theme").addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % 3];
    applyTheme();
  });
  system.addEventListener("change", applyTheme);
  addEventListener("beforeprint", () => wear("light"));
  addEventListener("afterprint", applyTheme);
  applyTheme();
  return {
    data,
    h,
    section,
    table,
    cards,
    list,
    chart,
    canvas,
    upright,
    multiples,
    band,
    sections,
    sortable,
    choice,
    quoted,
    tierColors,
    number,
    fine,
    seconds,
    plain,
    swatch,
  };
})();
