// Unpacks the timeline's events into columns.

function unpack(timeline) {
  const total = timeline.event_count;
  const events = {
    total,
    start: new Float64Array(total), end: new Float64Array(total), label: new Uint32Array(total),
    call: new Int32Array(total).fill(-1), note: new Uint32Array(total), lane: new Uint32Array(total),
    // Prefix sums of durations within a lane, so that the busy time of a range is one difference.
    before: new Float64Array(total + 1), marked: new Uint8Array(total), lanes: [], launched: new Map(),
  };
  const next = reader(timeline.events);
  let at = 0;
  timeline.lanes.forEach(([track, depth, many], index) => {
    const isDevice = timeline.tracks[track].side === 'device';
    events.lanes.push({ index, track, depth, first: at, last: at + many });
    let [end, call, sumBefore] = [0, 0, 0];
    for (const last = at + many; at < last; at += 1) {
      events.start[at] = end + next();
      end = events.start[at] + next();
      events.end[at] = end;
      events.label[at] = next();
      events.lane[at] = index;
      events.before[at] = sumBefore;
      sumBefore += end - events.start[at];
      if (isDevice) {
        const code = next();
        if (code > 0) {
          const folded = code - 1;
          call += folded % 2 === 0 ? folded / 2 : -(folded + 1) / 2;
          events.call[at] = call;
          if (!events.launched.has(call)) events.launched.set(call, []);
          events.launched.get(call).push(at);
        }
        events.note[at] = next();
      }
    }
  });
  const mark = reader(timeline.marked);
  for (let place = 0, step = mark(); step !== undefined; step = mark()) {
    place += step;
    events.marked[place] = 1;
  }
  events.markedBefore = sums(events.marked);
  return events;
}

// Reads varints: seven bits per byte, lowest first. Returns undefined after the last.
function reader(text) {
  const bytes = atob(text);
  let at = 0;
  return () => {
    if (at >= bytes.length) return undefined;
    let [value, scale] = [0, 1];
    for (;;) {
      const byte = bytes.charCodeAt(at);
      at += 1;
      value += (byte & 0x7f) * scale;
      if (byte < 0x80) return value;
      scale *= 128;
    }
  };
}

// Prefix counts of ones.
function sums(bits) {
  const before = new Uint32Array(bits.length + 1);
  for (let at = 0; at < bits.length; at += 1) before[at + 1] = before[at] + bits[at];
  return before;
}

// Binary search: the first index in from..until with a greater value.
function firstAbove(values, value, from, until) {
  let [low, high] = [from, until];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > value) high = middle; else low = middle + 1;
  }
  return low;
}

// The busy time of a lane between two times.
function busyBetween(events, lane, from, until) {
  const filled = (time) => {
    const at = firstAbove(events.end, time, lane.first, lane.last);
    if (at >= lane.last) {
      return lane.last === lane.first ? 0 : events.before[lane.last - 1] + events.end[lane.last - 1] - events.start[lane.last - 1];
    }
    return events.before[at] + Math.max(0, time - events.start[at]);
  };
  return filled(until) - filled(from);
}
