"use strict";
/* The page of `lesson plan --html`. */
{
  const { h, data } = Page;
  const about = Page.section(
    "about",
    "What LESSON does",
    "In federated learning, clients train on data they keep and a server merges their models, round by round. Clients are unequal: " +
      "a slow processor or a weak radio link makes one take minutes where another takes seconds.",
  );
  about.append(
    h(
      "p",
      {},
      h("strong", {}, "FedAvg"),
      " waits for everybody: a round is as long as its slowest client. ",
      h("strong", {}, "FedCS"),
      " sets a deadline τ and leaves out who misses it, with all their data. ",
      h("strong", {}, "LESSON"),
      " sets a deadline too, but sorts clients into tiers by how many deadlines they need: tier 1 uploads in every round, " +
        "tier 2 in every second, tier j in every j-th. Rounds are short, and everybody is heard.",
    ),
    h(
      "p",
      {},
      "The price is staleness: a client of tier j began with a model that has been replaced up to j − 1 times since. " +
        "Choosing τ is choosing between more updates and fresher ones; below, you can try.",
    ),
  );
  const explorer = Page.section("explorer", "Which deadline should this fleet have?");
  Explorer.mount(explorer, data.fleet);
  if (data.notes.length)
    Page.section("notes", "Notes").append(
      h(
        "ul",
        {},
        data.notes.map((note) => h("li", {}, note)),
      ),
    );
}
