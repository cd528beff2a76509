"use strict";
/* The page of `lesson plan --html`. */
{
  const { h, data } = Page;
  const about = Page.section(
    "about",
    "What LESSON does",
    "In federated learning, clients train on their own data and a server aggregates their models, round by round. Clients are unequal: " +
      "with a slow processor or a weak radio link, one takes minutes where another takes seconds.",
  );
  about.append(
    h(
      "p",
      {},
      h("strong", {}, "FedAvg"),
      " waits for all clients: a round takes as long as the slowest one. ",
      h("strong", {}, "FedCS"),
      " sets a deadline τ and leaves out the clients that miss it, with all their data. ",
      h("strong", {}, "LESSON"),
      " also sets a deadline, but sorts clients into tiers by how many rounds they need: tier 1 uploads every round, " +
        "tier 2 every second round, tier j every j-th. Rounds are short, and every client takes part.",
    ),
    h(
      "p",
      {},
      "The price is staleness: a client of tier j started from a model that has since been replaced up to j − 1 times. " +
        "The choice of τ is a trade-off between more updates and fresher ones. Try it below.",
    ),
  );
  const explorer = Page.section("explorer", "Which deadline suits this fleet?");
  Explorer.mount(explorer, data.fleet);
  if (data.notes.length) Page.section("notes", "Notes").append(Page.list(data.notes));
}
