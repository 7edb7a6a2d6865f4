// The timeline: rows, tools, keys, mouse, search, details. canvas.js draws it.

// Number of lanes of a thread that are shown until its name is clicked.
const FOLDED = 3;
const SHORTEST_NS = 40;

// options: { id, whole_ns, moved, isPart, hasKeys }: prefix of element ids, total time, callback for moves,
// whether the timeline is only a part of the page, and whether such a part explains its keys.
function timelineView(report, open, options = {}) {
  const { timeline } = report;
  const name_of = (part) => `${options.id ?? 'timeline'}-${part}`;
  const end_ns = options.whole_ns ? timeline.start_ns + options.whole_ns : timeline.end_ns;
  const events = unpack(timeline);
  const state = {
    from: timeline.start_ns, until: end_ns, top: 0, selected: null, found: null, marks: false, chosen: null,
    closed: new Set(), whole: new Set(), rows: [], rowOf: new Map(), steps: report.steps.rows, overview: null,
  };
  const frames = { times: [], fps: 0, drawn: [] };
  const canvas = el('canvas', { tabindex: '0', role: 'application', 'aria-label': 'timeline; w and s zoom, a and d move, slash searches' });
  const tip = el('div', { class: 'tip', hidden: true });
  const details = el('div', { class: 'details', 'aria-live': 'polite' });
  const rate = el('span', { class: 'note', id: name_of('rate') });
  const hits = el('span', { class: 'note' });
  const paint = painter(canvas, timeline, events, state);
  let isAsked = false;
  let held = new Set();
  let lastTick = 0;

  // --- rows ---
  function arrange() {
    const ranks = [...new Set(timeline.tracks.map((track) => track.rank))];
    const rows = [];
    let y = 0;
    const add = (row) => { rows.push({ ...row, y }); y += row.height; };
    const lanesOf = timeline.tracks.map(() => []);
    events.lanes.forEach((one) => lanesOf[one.track].push(one));
    for (const rank of ranks) {
      const isOpen = !state.closed.has(rank);
      const tracks = timeline.tracks.map((track, at) => ({ ...track, at })).filter((track) => track.rank === rank);
      const folded = isOpen ? [] : tracks.filter((track) => track.side === 'device').flatMap((track) => lanesOf[track.at]);
      add({ kind: 'rank', rank, text: `rank ${rank}`, isOpen, lanes: [], height: RANK });
      if (!isOpen) { if (folded.length) add({ kind: 'folded', rank, text: 'all streams', lanes: folded, height: LANE }); y += GAP; continue; }
      for (const track of tracks) {
        const isWhole = state.whole.has(track.at) || track.side === 'device' || track.depth <= FOLDED;
        const shown = lanesOf[track.at].slice(0, isWhole ? track.depth : FOLDED);
        const canFold = track.side === 'host' && track.depth > FOLDED;
        shown.forEach((one, at) => add({ kind: 'lane', rank, track: track.at, text: at === 0 ? track.name : '', isOpen: at === 0 && canFold ? isWhole : null, lanes: [one], height: LANE }));
        y += GAP;
      }
    }
    state.rows = rows;
    state.height = y;
    state.rowOf = new Map();
    for (const row of rows) {
      for (const one of row.lanes) state.rowOf.set(one.index, row);
    }
    // Events in folded lanes are drawn in the last visible lane of their track.
    events.lanes.forEach((one) => {
      if (!state.rowOf.has(one.index)) {
        const shown = rows.findLast((row) => row.track === one.track) ?? rows.find((row) => row.kind !== 'rank' && row.rank === timeline.tracks[one.track].rank);
        if (shown) state.rowOf.set(one.index, shown);
      }
    });
    scrollTo(state.top);
  }

  // --- frames ---
  function ask() {
    if (!isAsked) { isAsked = true; requestAnimationFrame(frame); }
  }

  function frame(now) {
    isAsked = false;
    if (!canvas.isConnected || canvas.clientWidth === 0) return;
    steer(now);
    const began = performance.now();
    paint.draw();
    frames.drawn.push(performance.now() - began);
    if (frames.drawn.length > 2000) frames.drawn.shift();
    frames.times.push(now);
    if (frames.times.length > 90) frames.times.shift();
    const recent = frames.times.filter((time) => now - time < 1000);
    if (recent.length > 4 && now - recent.at(-2) < 250) {
      frames.fps = 1000 * (recent.length - 1) / (now - recent[0]);
      rate.textContent = `${frames.fps.toFixed(0)} frames/s`;
    }
    if (held.size) ask();
  }

  // Held keys move the view a little with every frame.
  function steer(now) {
    const passed = Math.min(50, now - lastTick);
    lastTick = now;
    const span = state.until - state.from;
    const middle = state.pointer ?? (state.from + state.until) / 2;
    if (held.has('w')) zoom(0.9975 ** passed, middle);
    if (held.has('s')) zoom(1.0025 ** passed, middle);
    if (held.has('a')) move(-span * passed / 900);
    if (held.has('d')) move(span * passed / 900);
  }

  // --- moving ---
  function look(from, until) {
    const whole = end_ns - timeline.start_ns;
    const margin = whole * 0.02;
    const span = Math.max(SHORTEST_NS, Math.min(until - from, whole + 2 * margin));
    const middle = (from + until) / 2;
    state.from = Math.max(timeline.start_ns - margin, Math.min(middle - span / 2, end_ns + margin - span));
    state.until = state.from + span;
    options.moved?.(state.from - timeline.start_ns, state.until - timeline.start_ns);
    ask();
  }

  function zoom(factor, about) {
    look(about - (about - state.from) * factor, about + (state.until - about) * factor);
  }

  function move(ns) { look(state.from + ns, state.until + ns); }

  function scrollTo(top) {
    const visible = paint.room().height - AXIS - OVERVIEW;
    state.top = Math.max(0, Math.min(top, (state.height ?? 0) - visible));
    ask();
  }

  function show(from, until, margin = 0.1) {
    const span = Math.max(until - from, SHORTEST_NS);
    look(from - span * margin, until + span * margin);
  }

  // --- events ---
  function select(at, isBrought) {
    state.selected = at;
    state.chosen = null;
    details.classList.remove('totals');
    if (at != null && isBrought) bring(at);
    describe(details, { report, events, at, choose: (other) => select(other, true), zoomTo: (one) => show(events.start[one], events.end[one], 0.6) });
    ask();
  }

  function bring(at) {
    // A tab that was just opened has not been measured by a frame yet.
    if (paint.room().height !== canvas.clientHeight) paint.resize();
    const track = events.lanes[events.lane[at]].track;
    const { rank } = timeline.tracks[track];
    if (state.closed.delete(rank) || (events.lanes[events.lane[at]].depth >= FOLDED && !state.whole.has(track))) {
      state.whole.add(track);
      arrange();
    }
    const [from, until] = [events.start[at], events.end[at]];
    const span = state.until - state.from;
    if (until - from > span || (until - from) * 400 < span) show(from, until, 2);
    else if (from < state.from || until > state.until) look((from + until - span) / 2, (from + until + span) / 2);
    const row = state.rowOf.get(events.lane[at]);
    const visible = paint.room().height - AXIS - OVERVIEW;
    if (row && (row.y < state.top || row.y + row.height > state.top + visible)) scrollTo(row.y - visible / 2);
  }

  function rowAt(y) {
    const place = y - AXIS - OVERVIEW + state.top;
    return y < AXIS + OVERVIEW ? null : state.rows.find((row) => row.y <= place && place < row.y + row.height);
  }

  function eventAt(px, py) {
    const row = rowAt(py);
    if (!row || px < LABELS) return null;
    const time = paint.time(px);
    const reach = (state.until - state.from) / Math.max(1, paint.room().width - LABELS) * 2;
    let [best, least] = [null, Infinity];
    for (const one of row.lanes) {
      const at = firstAbove(events.end, time - reach, one.first, one.last);
      for (let next = at; next < Math.min(one.last, at + 40) && events.start[next] <= time + reach; next += 1) {
        const far = Math.max(events.start[next] - time, time - events.end[next], 0);
        if (far < least) [best, least] = [next, far];
      }
    }
    return best;
  }

  // --- search ---
  function search(wanted) {
    const text = wanted.trim().toLowerCase();
    if (!text) {
      state.found = null;
      hits.textContent = '';
      ask();
      return;
    }
    const isMatch = timeline.labels.map(([name]) => name.toLowerCase().includes(text));
    const bits = new Uint8Array(events.total);
    const order = [];
    let total = 0;
    for (let at = 0; at < events.total; at += 1) {
      if (isMatch[events.label[at]]) { bits[at] = 1; order.push(at); total += events.end[at] - events.start[at]; }
    }
    order.sort((a, b) => events.start[a] - events.start[b]);
    state.found = { bits, before: sums(bits), order, at: -1, total };
    hits.textContent = `${count(order.length)} events, ${nanos(total)}`;
    ask();
  }

  function step(by) {
    const { found } = state;
    if (!found || found.order.length === 0) return;
    found.at = (found.at + by + found.order.length) % found.order.length;
    hits.textContent = `${count(found.at + 1)} of ${count(found.order.length)} events, ${nanos(found.total)}`;
    select(found.order[found.at], true);
  }

  const field = el('input', { type: 'search', class: 'timeline-search', id: name_of('search'), placeholder: 'search by name', 'aria-label': 'search events by name' });
  field.addEventListener('input', () => search(field.value));
  field.addEventListener('keydown', (key) => {
    if (key.key === 'Enter') { step(key.shiftKey ? -1 : 1); key.preventDefault(); }
    if (key.key === 'Escape') { field.value = ''; search(''); canvas.focus(); }
    key.stopPropagation();
  });

  // --- mouse and keys ---
  let drag = null;
  canvas.addEventListener('pointerdown', (press) => {
    canvas.focus();
    drag = { x: press.offsetX, y: press.offsetY, top: state.top, from: state.from, until: state.until, isMoved: false, isOverview: press.offsetY < OVERVIEW, isPan: press.shiftKey, row: rowAt(press.offsetY) };
    canvas.setPointerCapture(press.pointerId);
    if (drag.isOverview) centre(press.offsetX);
  });

  function centre(px) {
    const share = (px - LABELS) / Math.max(1, paint.room().width - LABELS);
    const middle = timeline.start_ns + share * (timeline.end_ns - timeline.start_ns);
    const half = (state.until - state.from) / 2;
    look(middle - half, middle + half);
  }

  canvas.addEventListener('pointermove', (at) => {
    state.pointer = at.offsetX > LABELS ? paint.time(at.offsetX) : null;
    if (!drag) { hover(at.offsetX, at.offsetY); return; }
    tip.hidden = true;
    if (Math.abs(at.offsetX - drag.x) + Math.abs(at.offsetY - drag.y) > 3) drag.isMoved = true;
    if (drag.isOverview) { centre(at.offsetX); return; }
    if (!drag.isPan) { if (drag.isMoved && drag.x > LABELS) stretchTo(at); return; }
    const per = (drag.until - drag.from) / Math.max(1, paint.room().width - LABELS);
    look(drag.from - (at.offsetX - drag.x) * per, drag.until - (at.offsetX - drag.x) * per);
    scrollTo(drag.top - (at.offsetY - drag.y));
  });

  canvas.addEventListener('pointerup', (at) => {
    const was = drag;
    drag = null;
    if (!was || was.isOverview) return;
    if (was.isMoved) {
      if (!was.isPan && state.chosen) total();
      return;
    }
    const row = rowAt(at.offsetY);
    if (at.offsetX < LABELS && row) toggle(row);
    else select(eventAt(at.offsetX, at.offsetY), false);
  });

  // The range from the start of the drag to the pointer, for the ranks it covers.
  function stretchTo(at) {
    const times = [paint.time(drag.x), paint.time(Math.max(LABELS, at.offsetX))].map((time) => Math.max(timeline.start_ns, Math.min(time, timeline.end_ns)));
    const ends = [drag.row, rowAt(at.offsetY)].map((row) => state.rows.indexOf(row)).filter((place) => place >= 0);
    const touched = state.rows.slice(Math.min(...ends), Math.max(...ends) + 1).map((row) => row.rank);
    state.chosen = { from: Math.min(...times), until: Math.max(...times), ranks: ends.length ? new Set(touched) : null };
    ask();
  }

  // Totals of the selected range, or of the visible range if none is selected.
  function total() {
    const from = Math.max(state.from, timeline.start_ns);
    const chosen = state.chosen ?? { from, until: Math.min(state.until, timeline.end_ns), ranks: null };
    select(null, false);
    state.chosen = chosen;
    details.classList.add('totals');
    showTotals(details, { timeline, events, chosen, find: (name) => { field.value = name; search(name); },
      zoom: () => show(chosen.from, chosen.until, 0.02), close: () => select(null, false) });
    ask();
  }

  function toggle(row) {
    const [set, key] = row.kind === 'lane' ? [state.whole, row.track] : [state.closed, row.rank];
    if (!set.delete(key)) set.add(key);
    arrange();
  }

  canvas.addEventListener('pointerleave', () => { tip.hidden = true; state.pointer = null; });
  canvas.addEventListener('dblclick', (at) => {
    const event = eventAt(at.offsetX, at.offsetY);
    if (event != null) show(events.start[event], events.end[event], 0.3);
  });
  canvas.addEventListener('wheel', (turn) => {
    turn.preventDefault();
    const unit = turn.deltaMode === 1 ? 20 : 1;
    if (turn.shiftKey || turn.offsetX < LABELS) scrollTo(state.top + (turn.deltaY || turn.deltaX) * unit);
    else if (Math.abs(turn.deltaX) > Math.abs(turn.deltaY)) move(turn.deltaX * unit * (state.until - state.from) / 1000);
    else zoom(1.0018 ** (turn.deltaY * unit), paint.time(turn.offsetX));
  }, { passive: false });

  function hover(px, py) {
    const at = eventAt(px, py);
    tip.hidden = at == null;
    if (at == null) return;
    tip.textContent = `${shortened(plain(timeline.labels[events.label[at]][0]), 160)} · ${nanos(events.end[at] - events.start[at])}`;
    const { width } = paint.room();
    tip.style.left = `${Math.min(px + 14, Math.max(0, width - 430))}px`;
    tip.style.top = `${py + 16}px`;
  }

  canvas.addEventListener('keydown', (key) => {
    if (key.ctrlKey || key.metaKey || key.altKey) return;
    const name = key.key.toLowerCase();
    const acts = {
      arrowup: () => scrollTo(state.top - 45), arrowdown: () => scrollTo(state.top + 45),
      arrowleft: () => move(-(state.until - state.from) / 8), arrowright: () => move((state.until - state.from) / 8),
      '/': () => field.focus(), escape: () => select(null, false), 0: fit, m: toggleMarks, t: () => { state.chosen = null; total(); },
      n: () => step(key.shiftKey ? -1 : 1),
      f: () => { if (state.selected != null) show(events.start[state.selected], events.end[state.selected], 0.3); },
    };
    if ('wasd'.includes(name) && name.length === 1) { held.add(name); ask(); } else if (acts[name]) acts[name](); else return;
    key.preventDefault();
  });
  canvas.addEventListener('keyup', (key) => held.delete(key.key.toLowerCase()));
  canvas.addEventListener('blur', () => held.clear());

  // --- tools ---
  function fit() { look(timeline.start_ns, end_ns); }
  const isPathHere = events.markedBefore.at(-1) > 0;
  const marks = press('critical path', toggleMarks, { 'aria-pressed': 'false', disabled: !isPathHere, 'aria-keyshortcuts': 'm',
    title: isPathHere ? 'go to the critical path and dim everything else (m)' : 'no drawn event is on the critical path' });
  function toggleMarks() { setMarks(!state.marks); }
  function setMarks(isOn) {
    state.marks = isOn && isPathHere;
    marks.setAttribute('aria-pressed', String(state.marks));
    if (state.marks) bringPath();
    ask();
  }

  // Scrolls to the row with the largest visible share of the path.
  function bringPath() {
    if (paint.room().height !== canvas.clientHeight) paint.resize();
    const spent = () => {
      const found = new Map();
      for (let at = 0; at < events.total; at += 1) {
        if (!events.marked[at]) continue;
        const inside = Math.min(events.end[at], state.until) - Math.max(events.start[at], state.from);
        if (inside >= 0) found.set(events.lane[at], (found.get(events.lane[at]) ?? 0) + inside + 1);
      }
      return [...found].sort((a, b) => b[1] - a[1]);
    };
    let [most] = spent();
    if (!most) { fit(); [most] = spent(); }
    if (!most) return;
    const own = events.lanes[most[0]];
    const { rank } = timeline.tracks[own.track];
    const isHidden = own.depth >= FOLDED && !state.whole.has(own.track) && timeline.tracks[own.track].side === 'host';
    if (isHidden) state.whole.add(own.track);
    if (state.closed.delete(rank) || isHidden) arrange();
    const row = state.rowOf.get(most[0]);
    const visible = paint.room().height - AXIS - OVERVIEW;
    if (row && (row.y < state.top || row.y + row.height > state.top + visible)) scrollTo(row.y - visible / 3);
  }

  const held_steps = report.steps.rows.filter((row) => row.at_ns < timeline.end_ns && row.at_ns + row.host_ns > timeline.start_ns);
  const numbers = [...new Set(held_steps.map((row) => row.number))];
  const several = new Set(held_steps.map((row) => row.rank)).size > 1;
  const choices = [['', 'everything']].concat(numbers.flatMap((step) => {
    const rows = held_steps.filter((row) => row.number === step);
    const all = several ? [[`${step}/`, `step ${step}, all ranks`]] : [];
    return all.concat(rows.map((row) => [`${step}/${row.rank}`, `step ${step}, rank ${row.rank}`]));
  }));
  const steps = choice('step', choices, (value) => {
    if (!value) { fit(); return; }
    const [step, rank] = value.split('/');
    const rows = held_steps.filter((row) => String(row.number) === step && (rank === '' || String(row.rank) === rank));
    show(Math.min(...rows.map((row) => row.at_ns)), Math.max(...rows.map((row) => row.at_ns + row.host_ns)), 0.02);
  });

  const kinds = ['compute', 'communication', 'memory', 'operator', 'annotation', 'runtime', 'sync', 'python'];
  const used = new Set(timeline.labels.map(([, kind]) => timeline.kinds[kind]));
  const stage = el('div', { class: 'stage' }, canvas, tip);
  const element = el('div', {},
    el('div', { class: 'tools' }, steps, press('fit', fit, { title: 'everything (0)' }),
      press('+', () => zoom(0.6, (state.from + state.until) / 2), { 'aria-label': 'zoom in' }),
      press('−', () => zoom(1 / 0.6, (state.from + state.until) / 2), { 'aria-label': 'zoom out' }),
      marks, press('totals', () => { state.chosen = null; total(); }, { title: 'totals of the visible range by class, kernel and operator (t); drag to select a range', 'aria-keyshortcuts': 't' }), field, press('‹', () => step(-1), { 'aria-label': 'previous match' }), press('›', () => step(1), { 'aria-label': 'next match' }),
      hits, el('span', { class: 'spacer' }), rate),
    stage, details,
    options.isPart && !options.hasKeys ? '' : el('p', { class: 'keys' }, keys(['w', 's'], 'zoom'), keys(['a', 'd'], 'move'), keys(['wheel'], 'zoom'), keys(['drag'], 'totals of a range'),
      keys(['t'], 'totals of the visible range'), keys(['shift drag'], 'move'), keys(['m'], 'critical path'), keys(['shift wheel'], 'scroll'), keys(['click'], 'details'), keys(['f'], 'zoom to it'), keys(['/'], 'search'), keys(['n'], 'next match')),
    legend(kinds.filter((kind) => used.has(kind))), options.isPart ? '' : held_note(timeline));

  new ResizeObserver(() => { paint.resize(); scrollTo(state.top); ask(); }).observe(stage);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { paint.recolour(); ask(); });
  const ranks = new Set(timeline.tracks.map((track) => track.rank));
  if (ranks.size <= 2 && !options.isPart) timeline.tracks.forEach((track, at) => state.whole.add(at));
  paint.recolour();
  arrange();
  select(null, false);

  // A fixed sequence of zooming and moving, for benchmarks. Resolves to frames per second.
  function measure(milliseconds) {
    return new Promise((done) => {
      const whole = timeline.end_ns - timeline.start_ns;
      let first = null;
      frames.drawn = [];
      const tour = (now) => {
        first ??= now;
        const phase = (now - first) / milliseconds;
        if (phase >= 1) {
          const drawn = frames.drawn.sort((a, b) => a - b);
          frames.drawn = [];
          fit();
          done({ fps: 1000 * drawn.length / (now - first), frames: drawn.length, draw_ms_p50: drawn[drawn.length >> 1], draw_ms_max: drawn.at(-1), events: events.total });
          return;
        }
        const width = whole * 10 ** (-1.5 * (1 - Math.cos(4 * Math.PI * phase)));
        const middle = timeline.start_ns + whole * (0.5 + 0.4 * Math.sin(6 * Math.PI * phase));
        look(middle - width / 2, middle + width / 2);
        requestAnimationFrame(tour);
      };
      requestAnimationFrame(tour);
    });
  }

  return {
    element, show: (from, until) => { open(); show(from, until, 0.3); }, select, events, state, measure,
    // Moves without calling the callback for moves.
    follow: (from, until) => { [state.from, state.until] = [timeline.start_ns + from, timeline.start_ns + until]; ask(); },
    showPath: () => { open(); fit(); setMarks(true); },
    totals: (from, until, ranks) => totalsOf(timeline, events, { from, until, ranks: ranks && new Set(ranks) }),
    // Shows an event listed in a table. If it is not drawn, its time range is shown.
    choose: (rank, name, at, length) => {
      open();
      const of = (one) => timeline.tracks[events.lanes[events.lane[one]].track].rank;
      const found = events.start.findIndex((start, one) => start === at && timeline.labels[events.label[one]][0] === name && of(one) === rank);
      if (found >= 0) select(found, true);
      else show(at, at + length, 1);
    },
    find: (text) => { open(); field.value = text; search(text); step(1); },
    get fps() { return frames.fps; },
  };
}

function keys(names, what) {
  return el('span', {}, names.flatMap((name) => [el('kbd', { text: name }), ' ']), what, ' \u2003');
}

// Describes the part of the job that the timeline contains.
function held_note(timeline) {
  const said = [`${count(timeline.event_count)} events`];
  if (timeline.steps.length) said.push(`${timeline.steps.length} of ${timeline.step_count} steps, number ${timeline.steps[0]} to ${timeline.steps.at(-1)}; rowmill trace report --steps N or A..B selects others`);
  if (timeline.is_cut) said.push('the end is omitted because of the size limit');
  if (timeline.python_left_out_count) said.push(`${count(timeline.python_left_out_count)} frames of Python are omitted`);
  return el('p', { class: 'note', text: `${said.join('; ')}.` });
}

// Shows the details of an event.
function describe(place, { report, events, at, choose, zoomTo }) {
  const { timeline } = report;
  if (at == null) {
    place.replaceChildren(note('Click an event to see its details, its launch and the events around it. Drag over a range to see its totals.'));
    return;
  }
  const name = (one) => timeline.labels[events.label[one]][0];
  const lane = events.lanes[events.lane[at]];
  const track = timeline.tracks[lane.track];
  const facts = [['duration', `${nanos(events.end[at] - events.start[at])} (${exactly(events.end[at] - events.start[at])})`],
    ['start', exactly(events.start[at])], ['what', words(timeline.kinds[timeline.labels[events.label[at]][1]])],
    ['where', `rank ${track.rank}, ${track.name}`]];
  const step = report.steps.rows.find((row) => row.rank === track.rank && row.at_ns <= events.start[at] && events.start[at] < row.at_ns + row.host_ns);
  if (step) facts.push(['step', `${step.number}, ${nanos(events.start[at] - step.at_ns)} after its start`]);
  if (events.marked[at]) facts.push(['critical path', 'yes']);
  const call = events.call[at];
  if (call >= 0) {
    facts.push(['launched by', link(name(call), () => choose(call))], ['launch delay', `${nanos(events.start[at] - events.end[call])} after the call`]);
  }
  const around = enclosing(events, call >= 0 ? call : at);
  if (around.length) facts.push(['inside', el('span', {}, around.flatMap((one, index) => [index ? ' › ' : '', link(shortened(name(one), 60), () => choose(one))]))]);
  const work = events.launched.get(at);
  if (work) facts.push(['launches', el('span', {}, link(shortened(name(work[0]), 70), () => choose(work[0])), work.length > 1 ? ` and ${count(work.length - 1)} more` : '')]);
  if (events.note[at]) facts.push(['shape', timeline.notes[events.note[at]]]);
  place.replaceChildren(el('div', {}, el('b', { text: plain(name(at)) }), ' ', link('zoom to it', () => zoomTo(at))),
    el('dl', {}, facts.map(([term, value]) => el('div', { class: term === 'inside' || term === 'shape' ? 'wide' : null }, el('dt', { text: term }), el('dd', {}, value)))));
}

// Returns the enclosing events on the same thread, outermost first.
function enclosing(events, at) {
  const own = events.lanes[events.lane[at]];
  const found = [];
  for (const lane of events.lanes) {
    if (lane.track !== own.track || lane.depth >= own.depth) continue;
    const around = firstAbove(events.end, events.start[at], lane.first, lane.last);
    if (around < lane.last && events.start[around] <= events.start[at] && events.end[around] >= events.end[at]) found.push(around);
  }
  return found;
}
