"use strict";
/* The page of a reproduction: claims with their verdicts, figures and tables. */
(() => {
  const { data, h, section, table, choice, quoted } = Page;
  const MARKS = { holds: "✓", fails: "✗", inconclusive: "?" };
  const VERDICTS = { holds: "#009e73", fails: "#d55e00", mixed: "#e69f00", inconclusive: "#7f7f7f" };

  function what() {
    const made = section("what", "What was run", data.what);
    if (data.note) made.append(h("p", { role: "note" }, h("strong", {}, data.note)));
  }

  function claims() {
    if (!data.claims.length) return;
    const made = section(
      "claims",
      "The paper's claims",
      "Each claim has one or more parts. A part holds (✓) if its whole 95 % confidence interval meets the claim, fails (✗) if none of it does, and is inconclusive (?) otherwise. A claim holds, fails or is inconclusive if all its parts do or are, and is mixed otherwise. Parts and claims that are not in the paper are marked as added; such parts do not count toward a verdict, and such claims are not counted below. If runs never reach a target, the part lists the value of each seed (> marks a lower bound), and its interval is that of the median by the sign test, which needs at least six seeds.",
    );
    made.append(
      h(
        "div",
        { class: "cards" },
        Object.entries(VERDICTS).map(([verdict, color]) =>
          h(
            "div",
            { class: "card swatched", style: `--swatch:${color}` },
            h("div", { class: "value" }, `${data.counts[verdict] ?? 0}`),
            h("div", {}, verdict),
            h(
              "div",
              { class: "quiet" },
              `of ${data.claims.filter((claim) => !claim.added).length} claims of the paper`,
            ),
          ),
        ),
      ),
    );
    const place = h("div", { class: "wrapping" });
    made.append(place);
    place.before(
      choice("Claims shown", [["", "all"], ...Object.keys(VERDICTS).map((verdict) => [verdict, verdict])], (wanted) =>
        place.replaceChildren(listed(wanted)),
      ),
    );
  }

  function mark(outcome) {
    return h("span", { role: "img", "aria-label": outcome, title: outcome }, MARKS[outcome]);
  }

  function listed(wanted) {
    const chosen = data.claims.filter((claim) => !wanted || claim.verdict === wanted);
    return table(
      `${chosen.length} ${chosen.length === 1 ? "claim" : "claims"}`,
      ["claim", "verdict", "paper", "ours (mean ± 95 % confidence interval)", "seeds", "shown in"],
      chosen.map((claim) => [
        `${claim.statement}${claim.added ? " (added)" : ""}`,
        h("strong", { style: `border-bottom:3px solid ${VERDICTS[claim.verdict]}` }, claim.verdict),
        claim.paper,
        h(
          "span",
          {},
          claim.parts.map((part) =>
            h(
              "div",
              {},
              mark(part.outcome),
              ` ${part.label}${part.added ? " (added, does not count)" : ""}: ${part.shown}`,
            ),
          ),
        ),
        `${claim.seeds}`,
        claim.items.join(", "),
      ]),
    );
  }

  function items() {
    const made = section("items", "Figures and tables");
    for (const item of data.items) {
      made.append(h("h3", { id: item.name }, item.title));
      if (item.png)
        made.append(
          h(
            "figure",
            {},
            h("img", {
              class: "figure",
              src: `data:image/png;base64,${item.png}`,
              alt: item.title,
              loading: "lazy",
            }),
          ),
        );
      else made.append(table(item.name, item.columns, item.rows));
      made.append(quoted(item.command, `the command for ${item.name}`));
    }
  }

  for (const draw of [what, claims, items]) draw();
})();
