// Totals of a selected range of the timeline by class, kernel and operator.

// Sums over the events of some ranks. Events are clipped to the range.
function totalsOf(timeline, events, { from, until, ranks }) {
  const totals = { from, until, classes: new Map(), kernels: new Map(), operators: new Map() };
  const add = (map, key, values) => {
    const sums = map.get(key) ?? { key, count: 0, ns: 0, host_ns: 0, device_ns: 0 };
    Object.entries(values).forEach(([name, value]) => { sums[name] += value; });
    map.set(key, sums);
  };
  const lanesOf = timeline.tracks.map(() => []);
  events.lanes.forEach((lane) => lanesOf[lane.track].push(lane));
  timeline.tracks.forEach((track, at) => {
    if (ranks && !ranks.has(track.rank)) return;
    lanesOf[at].forEach((lane, depth) => {
      for (let one = firstAbove(events.end, from, lane.first, lane.last); one < lane.last && events.start[one] < until; one += 1) {
        const [start, end] = [Math.max(events.start[one], from), Math.min(events.end[one], until)];
        const [name, kind] = timeline.labels[events.label[one]];
        const what = timeline.kinds[kind];
        if (track.side === 'device' && kind < DEVICE_KINDS) {
          add(totals.classes, what, { count: 1, ns: end - start });
          add(totals.kernels, name, { count: 1, ns: end - start });
          const launched = events.call[one] >= 0 ? launcher(timeline, events, lanesOf, events.call[one]) : null;
          if (launched != null) add(totals.operators, timeline.labels[events.label[launched]][0], { device_ns: end - start });
        } else if (what === 'operator') {
          // Called operators are in the next lane.
          const below = lanesOf[at][depth + 1];
          const inside = below ? busyBetween(events, below, start, end) : 0;
          add(totals.operators, name, { count: 1, host_ns: end - start - inside });
        }
      }
    });
  });
  const ordered = (map, size) => [...map.values()].sort((a, b) => size(b) - size(a) || a.key.localeCompare(b.key));
  return { ...totals, classes: ordered(totals.classes, (row) => row.ns), kernels: ordered(totals.kernels, (row) => row.ns),
    operators: ordered(totals.operators, (row) => row.host_ns + row.device_ns) };
}

// The kinds of events that are device work.
const DEVICE_KINDS = 4;

// Returns the innermost operator around a call.
function launcher(timeline, events, lanesOf, call) {
  const own = events.lanes[events.lane[call]];
  const lanes = lanesOf[own.track];
  for (let depth = own.depth - 1; depth >= 0; depth -= 1) {
    const lane = lanes[depth];
    const around = firstAbove(events.end, events.start[call], lane.first, lane.last);
    if (around < lane.last && events.start[around] <= events.start[call] && timeline.kinds[timeline.labels[events.label[around]][1]] === 'operator') return around;
  }
  return null;
}

function showTotals(place, { timeline, events, chosen, find, zoom, close }) {
  const totals = totalsOf(timeline, events, chosen);
  const length = chosen.until - chosen.from;
  const several = new Set(timeline.tracks.map((track) => track.rank)).size > 1;
  const ranks = [...(chosen.ranks ?? [])].sort((a, b) => a - b);
  const of = !several ? '' : ranks.length ? `, rank${ranks.length > 1 ? 's' : ''} ${ranks.join(', ')}` : ', all ranks';
  const shorts = new Map(timeline.labels.filter(([, , short]) => short).map(([name, , short]) => [name, short]));
  const named = (row) => link(shorts.get(row.key) ?? row.key, () => find(row.key), row.key);
  const share = (row) => 100 * row.ns / Math.max(1, length);
  place.replaceChildren(
    el('div', { class: 'tools' }, el('b', { text: `${nanos(length)} from ${moment(chosen.from, timeline.end_ns - timeline.start_ns)}${of}` }), press('zoom to it', zoom), press('close', close)),
    el('div', { class: 'sums' },
      el('div', {}, el('h3', { text: 'By class' }), table([
        { title: 'class', kind: 'words', get: (row) => row.key, cell: (row) => el('span', {}, el('i', { class: `swatch ${colour(row.key)}` }), words(row.key)) }, { title: 'count', kind: 'count', get: (row) => row.count },
        { title: 'on devices', kind: 'ns', get: (row) => row.ns, tip: 'sum over streams' },
        { title: '% of range', kind: 'percent', get: share, tip: 'share of the selected range; above 100 if streams or ranks work concurrently' }], totals.classes, { sort: 2 })),
      el('div', {}, el('h3', { text: say('By kernel, copy and set') }), table([
        { title: 'name', kind: 'name', get: (row) => row.key, cell: named }, { title: 'count', kind: 'count', get: (row) => row.count },
        { title: 'on devices', kind: 'ns', get: (row) => row.ns }], totals.kernels, { sort: 2, top: 8 })),
      el('div', {}, el('h3', { text: 'By operator' }), table([
        { title: 'name', kind: 'name', get: (row) => row.key, cell: named }, { title: 'calls', kind: 'count', get: (row) => row.count },
        { title: 'on the host', kind: 'ns', get: (row) => row.host_ns, tip: 'without called operators' },
        { title: 'on devices', kind: 'ns', get: (row) => row.device_ns, tip: 'in the selected range, launched by the operator' }], totals.operators, { top: 8 }))));
}
