"use strict";
/* A fleet from a recording, flight.jsonl, as in lesson.flight: per client the median latency of its replies. Unlike
   `lesson plan --flight`, the page also counts failures that a disconnection explains. */
const FlightJsonl = (() => {
  const FORMAT = 1,
    COLD = 1.5,
    MAX_S = 1e10;
  const EVENTS = ["connected", "left", "asked", "arrived", "failed", "round", "resumed"];

  /** Whether a file's bytes begin like a recording rather than a table. */
  function looksLikeOne(bytes) {
    return new TextDecoder().decode(bytes.slice(0, 1000)).trimStart().startsWith("{");
  }

  /** The fleet of a file's bytes; throws an Error whose message is one line. */
  function read(bytes, file) {
    const jobs = jobsOf(events(bytes, file), file).filter(({ kind }) => kind === "train");
    if (!jobs.length) throw new Error(`${file} has no training job; record a run in which clients train`);
    if (!jobs.some(({ outcome }) => outcome === "arrived"))
      throw new Error(`${file} has no replies from clients; record a run in which clients reply`);
    const byClient = Map.groupBy(jobs, ({ client }) => client);
    const clients = [...byClient.keys()]
      .sort()
      .map((name) => ({ name, ...observed(byClient.get(name)) }))
      .filter(({ latency_s }) => latency_s !== null);
    const known = clients.every(({ share }) => !Number.isNaN(share));
    const part = (of) => clients.map((one) => (known && Number.isFinite(one.latency_s) ? of(one) : null));
    return {
      name: clients.map(({ name }) => name),
      x_km: null,
      y_km: null,
      compute_s: part(({ latency_s, share }) => latency_s * share),
      upload_s: part(({ latency_s, share }) => latency_s - latency_s * share),
      latency_s: clients.map(({ latency_s }) => latency_s),
      compute_j: null,
      transmit_j: null,
    };
  }

  /** Median latency of a client's replies and median share of computing in it; null without a job that counts. */
  function observed(jobs) {
    const silent = jobs.every(({ outcome }) => outcome === "open");
    let ended = jobs.filter(({ outcome, took_s }) => silent || (["arrived", "failed"].includes(outcome) && took_s > 0));
    if (!ended.length) return { latency_s: null };
    if (startsCold(ended)) ended = ended.slice(1);
    const replies_s = repliesOf(ended);
    const shares = ended.map(({ compute_s, took_s }) => Math.min(Math.max(compute_s / took_s, 0), 1));
    const usual = median(shares.filter((share) => !Number.isNaN(share)));
    const filled = ended.map(({ outcome }, place) =>
      outcome !== "arrived" ? 1 : Number.isNaN(shares[place]) ? usual : shares[place],
    );
    return {
      latency_s: replies_s.length ? median(replies_s) : Infinity,
      share: median(filled.filter((share) => !Number.isNaN(share))),
    };
  }

  /** Whether the first reply shows a client's start rather than its usual speed. */
  function startsCold(ended) {
    const [first, ...others] = repliesOf(ended);
    if (ended[0].outcome !== "arrived" || others.length < 3) return false;
    return first > Math.max(...others) && first > COLD * median(others);
  }

  function repliesOf(ended) {
    return ended.filter(({ outcome }) => outcome === "arrived").map(({ took_s }) => took_s);
  }

  /** The median; NaN of no values. */
  function median(values) {
    const sorted = Float64Array.from(values).sort(),
      half = sorted.length >> 1;
    if (!sorted.length) return NaN;
    return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  }

  /** All jobs in the order in which they were asked. */
  function jobsOf(found, file) {
    const jobs = new Map();
    let now_s = 0;
    for (const { line, event } of found) {
      const wrong = (problem) => new Error(`${file} line ${line}: ${problem}`);
      if (event.t_s < now_s)
        throw wrong(`t_s must not be less than ${now_s}, as on the line before, got ${event.t_s}`);
      now_s = event.t_s;
      if (["asked", "connected", "left"].includes(event.event) && !event.client)
        throw wrong(`client must be given for the event '${event.event}'`);
      if (event.event === "asked") {
        if (!event.job) throw wrong("job must be given for the event 'asked'");
        if (jobs.has(event.job)) throw wrong(`job '${event.job}' has a second event 'asked'`);
        const { client, kind = "train" } = event;
        jobs.set(event.job, { client, kind, asked_s: now_s, outcome: "open", compute_s: NaN });
      } else if (event.event === "arrived" || event.event === "failed") end(jobs.get(event.job), event, wrong);
      else if (event.event === "resumed")
        for (const job of jobs.values()) if (job.outcome === "open") job.outcome = "restarted";
    }
    return [...jobs.values()];
  }

  function end(job, { event, t_s, job: name, client, compute_s, downloaded_s, trained_s }, wrong) {
    if (!job) throw wrong(`job '${name ?? ""}' ended without an event 'asked'`);
    if (client && client !== job.client)
      throw wrong(`client of job '${name}' must be '${job.client}', which was asked, got '${client}'`);
    const isOver = job.outcome === "failed" || job.outcome === "restarted";
    if (job.outcome === "arrived" || (isOver && event === "failed")) throw wrong(`job '${name}' ended twice`);
    if (isOver) return; // a late reply to a job that the server had given up does not count
    Object.assign(job, { outcome: event, took_s: t_s - job.asked_s });
    job.compute_s = compute_s ?? (trained_s ?? NaN) - (downloaded_s ?? NaN);
  }

  /** The events of a recording, each with the number of its line. */
  function events(bytes, file) {
    const lines = decode(bytes, file).split("\n");
    if (lines.at(-1)) throw new Error(`${file} line ${lines.length} is incomplete; remove it to use the rest`);
    const found = lines.map((text, place) => ({ line: place + 1, text: text.trim() })).filter(({ text }) => text);
    const [first = { line: 1, text: "" }, ...rest] = found;
    if (!first.text.includes('"flight"')) {
      const got = first.text ? shown(first.text) : "an empty file";
      throw new Error(`${file} line ${first.line}: a recording must start with {"flight": ${FORMAT}, …}, got ${got}`);
    }
    const { flight } = parsed(first, file);
    if (!(Number.isInteger(flight) && flight >= 1))
      throw new Error(`${file} line ${first.line}: flight must be a whole number >= 1, got ${shown(String(flight))}`);
    if (flight > FORMAT)
      throw new Error(
        `${file} has format ${flight}, this version reads up to ${FORMAT}; install a newer version of lesson`,
      );
    return rest.map((one) => ({ line: one.line, event: checked(parsed(one, file), one.line, file) }));
  }

  function decode(bytes, file) {
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      throw new Error(`${file} cannot be read: it must be text in UTF-8`);
    }
  }

  function parsed({ line, text }, file) {
    let value = null;
    try {
      value = JSON.parse(text);
    } catch {
      throw new Error(`${file} line ${line} is not JSON: ${shown(text)}`);
    }
    if (value === null || typeof value !== "object" || Array.isArray(value))
      throw new Error(`${file} line ${line}: an event must be a JSON object, got ${shown(text)}`);
    return value;
  }

  /** An event whose fields have the right types, as far as they are used here. */
  function checked(event, line, file) {
    const check = (name, isRight, wanted) => {
      const got = shown(JSON.stringify(event[name]) ?? "none");
      if (!isRight) throw new Error(`${file} line ${line}: ${name} must be ${wanted}, got ${got}`);
    };
    const isTime = (value) => typeof value === "number" && value >= 0 && value <= MAX_S,
      isMissing = (value) => value === undefined || value === null;
    check("event", EVENTS.includes(event.event), `one of ${EVENTS.join(", ")}`);
    check("t_s", isTime(event.t_s), `a number from 0 to ${MAX_S}`);
    for (const name of ["compute_s", "downloaded_s", "trained_s"])
      check(name, isMissing(event[name]) || isTime(event[name]), `a number from 0 to ${MAX_S}`);
    for (const name of ["client", "job", "kind"])
      check(name, isMissing(event[name]) || typeof event[name] === "string", "text");
    return event;
  }

  /** At most 60 characters of a text. */
  function shown(text) {
    return text.length <= 60 ? text : `${text.slice(0, 59)}…`;
  }

  return { looksLikeOne, read };
})();
