"use strict";
/* A fleet from a CSV file of measured latencies, with the checks and messages of `lesson plan --latencies`. */
const FleetCsv = (() => {
  const REQUIRED = ["client", "latency_s"],
    OPTIONAL = ["compute_s", "upload_s", "num_samples", "compute_j", "transmit_j"];
  const EXAMPLE =
    "client,latency_s,compute_s,upload_s\nphone-ana,9.4,7.1,2.3\ntablet-lab,21.5,17.2,4.3\npi-garage,55,33.1,21.9\nsensor-roof,71.3,,\noffline,inf,,\n";

  /** The fleet of a file's bytes; throws an Error whose message is one line. */
  function read(bytes, file) {
    const seen = new Map();
    const fleet = {
      name: [],
      x_km: null,
      y_km: null,
      compute_s: [],
      upload_s: [],
      latency_s: [],
      compute_j: [],
      transmit_j: [],
    };
    for (const { line, row } of rows(decode(bytes, file), file)) {
      const where = `${file} line ${line}`,
        name = row.client;
      if (!name) throw wrong(`${where}: client must have a name, got an empty one`);
      if (seen.has(name))
        throw wrong(
          `${where}: client '${name.slice(0, 40)}' is listed twice, first on line ${seen.get(name)}; rename one`,
        );
      seen.set(name, line);
      fleet.name.push(name);
      for (const column of ["compute_s", "upload_s", "latency_s", "compute_j", "transmit_j"])
        fleet[column].push(numberIn(row[column] ?? "", column, where));
      checkSplit(where, fleet.compute_s.at(-1), fleet.upload_s.at(-1), fleet.latency_s.at(-1));
      checkEnergy(where, fleet, "compute_j", "compute_s");
      checkEnergy(where, fleet, "transmit_j", "upload_s");
      checkSamples(row.num_samples ?? "", where);
    }
    if (!seen.size) throw wrong(`${file} has no clients; add one line per client below the header`);
    if (!fleet.latency_s.some(Number.isFinite))
      throw wrong(`no client can be reached: all ${seen.size} latencies are infinite`);
    return fleet;
  }

  /** A fleet as the text of a file that `read` and `lesson run --latencies` accept. */
  function write(fleet) {
    const columns = ["compute_s", "upload_s", "compute_j", "transmit_j"].filter((column) => fleet[column]?.some(isKnown));
    const cell = (value) => (isKnown(value) ? String(value) : value === Infinity ? "inf" : "");
    const lines = fleet.name.map((name, client) => {
      const parts = columns.map((column) => (Number.isFinite(fleet.latency_s[client]) ? cell(fleet[column][client]) : ""));
      return [quoted(String(name)), cell(fleet.latency_s[client]), ...parts].join(",");
    });
    return [[...REQUIRED, ...columns].join(","), ...lines, ""].join("\n");
  }

  function isKnown(value) {
    return value !== null && Number.isFinite(value);
  }

  function quoted(text) {
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function decode(bytes, file) {
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      // leaves out a byte order mark
      throw wrong(`${file} cannot be read: not a CSV file in UTF-8`);
    }
  }

  function rows(text, file) {
    const [first, ...rest] = records(text, file);
    const header = (first?.values ?? []).map((name) => name.trim());
    checkHeader(header, file);
    return rest
      .filter(({ values }) => values.some((value) => value.trim()))
      .map(({ line, values }) => {
        if (values.length !== header.length)
          throw wrong(`${file} line ${line}: a row must have ${header.length} values, as many as the header, got ${values.length}`);
        return { line, row: Object.fromEntries(header.map((name, place) => [name, values[place].trim()])) };
      });
  }

  /** Lines as lists of values, each with the number of its last line; a value in quotes may hold commas and lines. */
  function records(text, file) {
    const found = [],
      cell = /"([^"]*(?:""[^"]*)*)"(,|\n|$)|([^,\n]*)(,|\n|$)/y;
    const whole = text.replace(/\r\n?/g, "\n").replace(/\n$/, "");
    let values = [],
      line = 1;
    while (whole) {
      const start = cell.lastIndex,
        [all, inQuotes, endOfQuoted, plain, endOfPlain] = cell.exec(whole);
      if (inQuotes === undefined && whole[start] === '"')
        throw wrong(`${file} cannot be read: on line ${line}, a value in quotes must end with a quote and a comma`);
      values.push(inQuotes === undefined ? plain : inQuotes.replaceAll('""', '"'));
      const end = endOfQuoted ?? endOfPlain,
        breaks = all.split("\n").length - 1;
      if (end === ",") {
        line += breaks;
        continue;
      }
      found.push({ line: line + breaks - (end ? 1 : 0), values });
      if (!end) break;
      line += breaks;
      values = [];
    }
    return found;
  }

  function checkHeader(header, file) {
    const odd = header.some((name) => !REQUIRED.includes(name) && !OPTIONAL.includes(name));
    if (odd || REQUIRED.some((name) => !header.includes(name)) || new Set(header).size !== header.length) {
      const hint = header.some((name) => /[;\t]/.test(name)) ? "; separate columns with commas" : "";
      throw wrong(
        `${file} line 1: the header must be ${REQUIRED}, optionally with ${OPTIONAL}, got '${header.join(",").slice(0, 80)}'${hint}`,
      );
    }
  }

  /** The number of a cell; null for an empty one where that is allowed. */
  function numberIn(text, column, where) {
    const optional = OPTIONAL.includes(column);
    if (!text && optional) return null;
    const value = /^[+-]?inf(inity)?$/i.test(text)
      ? Infinity * (text.startsWith("-") ? -1 : 1)
      : /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text)
        ? Number(text)
        : NaN;
    if (!(optional ? value >= 0 : value > 0)) {
      const hint =
        column === "latency_s" && Number.isNaN(value) ? "; write inf for a client that cannot be reached" : "";
      throw wrong(`${where}: ${column} must be a number ${optional ? ">= 0" : "> 0"}, got '${text.slice(0, 40)}'${hint}`);
    }
    return value;
  }

  function checkSamples(text, where) {
    if (text && !(/^\d{1,15}$/.test(text) && Number(text) > 0 && Number(text) <= 1e12))
      throw wrong(`${where}: num_samples must be a whole number from 1 to 1000000000000, got '${text.slice(0, 40)}'`);
  }

  function checkSplit(where, compute_s, upload_s, latency_s) {
    const total_s = compute_s + upload_s,
      short = (value) => String(Number(value.toPrecision(6))).replace("Infinity", "inf");
    const known = compute_s !== null && upload_s !== null;
    if (
      known &&
      total_s !== latency_s &&
      !(
        Math.abs(total_s - latency_s) <= 0.01 * Math.max(total_s, latency_s) &&
        latency_s < Infinity &&
        total_s < Infinity
      )
    ) {
      throw wrong(
        `${where}: compute_s + upload_s must equal latency_s to within 1 %, got ${short(total_s)} and ${short(latency_s)}`,
      );
    }
    if (Math.max(compute_s, upload_s) > latency_s * 1.01)
      throw wrong(`${where}: compute_s and upload_s must not exceed latency_s = ${short(latency_s)}`);
  }

  /** Energies are finite, and the times in which they are used are known. */
  function checkEnergy(where, fleet, column, during) {
    const joules = fleet[column].at(-1);
    if (joules === Infinity) throw wrong(`${where}: ${column} must be finite, got inf`);
    if (joules !== null && fleet[during].at(-1) === null)
      throw wrong(`${where}: ${column} requires ${during}, got an empty cell; add the time or remove the energy`);
  }

  function wrong(message) {
    return new Error(message.split(/\s+/).join(" "));
  }

  return { EXAMPLE, read, write };
})();
