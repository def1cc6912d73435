// `0, 500, 1020-1023`, `role 2`, `stage 1`, `tp.3`, `tp[0]`, `all`: which ranks are meant.

export function parse(text, run) {
  const known = new Set(run.ranks);
  const found = new Set();
  for (const part of text.split(/[,;]/).map((one) => one.trim()).filter(Boolean)) {
    const role = /^role\s*(\d+)$/i.exec(part);
    const span = /^(\d+)(?:\s*-\s*(\d+))?$/.exec(part);
    const set = Object.hasOwn(run.sets || {}, part) ? run.sets[part] : null;
    if (set) set.forEach((rank) => found.add(rank));
    else if (part.toLowerCase() === "all") run.ranks.forEach((rank) => found.add(rank));
    else if (role) run.ranks.forEach((rank, at) => { if (run.roles[at] === Number(role[1])) found.add(rank); });
    else if (span) {
      const last = Math.min(Number(span[2] ?? span[1]), run.ranks[run.ranks.length - 1]);
      for (let rank = Number(span[1]); rank <= last; rank += 1) if (known.has(rank)) found.add(rank);
      if (!known.has(Number(span[1]))) throw new Error(`rank ${span[1]} is not in this run`);
    } else throw new Error(`“${part}” is not a rank: write ${["0", "8-15", ...Object.keys(run.sets || {}).slice(0, 2), "all"].join(", ")}`);
  }
  return [...found].sort((a, b) => a - b);
}

// What is drawn at first: all of few ranks, else the first of each role, and the last rank.
export function usual(run) {
  if (run.ranks.length <= 8) return [...run.ranks];
  const first = new Map();
  run.ranks.forEach((rank, at) => { if (!first.has(run.roles[at])) first.set(run.roles[at], rank); });
  const found = new Set([...first.values()].slice(0, 7));
  for (const rank of run.ranks) if (found.size < 7) found.add(rank);
  found.add(run.ranks[run.ranks.length - 1]);
  return [...found].sort((a, b) => a - b);
}

export function spoken(ranks) {
  const parts = [];
  for (let at = 0; at < ranks.length; at += 1) {
    let last = at;
    while (last + 1 < ranks.length && ranks[last + 1] === ranks[last] + 1) last += 1;
    parts.push(last > at ? `${ranks[at]}-${ranks[last]}` : `${ranks[at]}`);
    at = last;
  }
  return parts.join(", ");
}
