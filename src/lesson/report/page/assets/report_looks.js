"use strict";
/* Names and colors of the configurations on a report, and the metric: its name and how its values are written. */
window.Looks = (() => {
  const { data, swatch } = Page;
  const groups = data.groups;
  const contenders = data.varies.join(", ");

  function strategyName(place) {
    return [swatch(groups[place].color), groups[place].label];
  }

  function groupOf(label) {
    return groups.findIndex((group) => group.label === label);
  }

  function tierName(tier) {
    return tier ? `tier ${tier}` : "unreachable";
  }

  /** An axis of tiers, in their order whichever strategy has them first. */
  function tierAxis(rows) {
    const tiers = [...new Set(rows.flat().map((row) => row.tier))].sort((one, other) => one - other);
    return { type: "category", categoryorder: "array", categoryarray: tiers.map(tierName) };
  }

  /** The style of a bar. Lines of the same color differ in their dashes, bars in their hatching. */
  function fill(group) {
    const shape = { solid: "", dash: "/", dot: ".", dashdot: "x" }[group.dash];
    return { color: group.color, pattern: { shape, fillmode: "overlay", size: 6, solidity: 0.35 } };
  }

  function percent(value) {
    return value === undefined || value === null ? "–" : `${(100 * value).toFixed(1)} %`;
  }

  /** A number with four significant digits. */
  function significant(value) {
    return value === undefined || value === null ? "–" : value.toLocaleString("en", { maximumSignificantDigits: 4 });
  }

  const metric = data.metric
    ? {
        section: "metric",
        name: data.metric.name,
        title: data.metric.name,
        best: "best",
        value: significant,
        target: (target) => `${data.metric.name} ${target}`,
        reaching: (target) => `${data.metric.name} ${target}`,
        hover: "%{y:.4~g}",
        axis: {},
      }
    : {
        section: "accuracy",
        name: "accuracy",
        title: "Accuracy",
        best: "most accurate",
        value: percent,
        target: (share) => `${Number((100 * share).toPrecision(6))} %`,
        reaching: (share) => `${Number((100 * share).toPrecision(6))} % accuracy`,
        hover: "%{y:.1%}",
        axis: { tickformat: ".0%", rangemode: "tozero" },
      };

  return { groups, contenders, strategyName, groupOf, tierName, tierAxis, fill, percent, metric };
})();
