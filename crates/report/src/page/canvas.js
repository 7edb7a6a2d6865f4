// Draws the lanes of a time range. Events wider than a pixel are drawn one by one; narrower ones as columns
// whose opacity is the covered share. The cost depends on pixels, not on events.

const LANE = 15;
const GAP = 5;
const RANK = 20;
const AXIS = 22;
const OVERVIEW = 26;
const LABELS = 150;
const STRENGTHS = 4;
const SHADES = 3;

function painter(canvas, timeline, events, state) {
  const context = canvas.getContext('2d', { alpha: false });
  const widths = new Map();
  let palette = null;
  let room = { width: 0, height: 0 };

  // Colors of the style sheet, which follows the reader's theme.
  function recolour() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(`--${name}`).trim();
    const back = parts(value('bg'));
    const mix = (from, to, share) => from.map((part, at) => Math.round(part + (to[at] - part) * share));
    const kinds = timeline.kinds.map((kind) => {
      const plain = parts(value(`c-${COLOUR[kind]}`));
      return Array.from({ length: SHADES }, (_, shade) => {
        const tinted = mix(plain, shade === 1 ? [255, 255, 255] : back, shade === 0 ? 0 : 0.17);
        return {
          faint: css(mix(back, tinted, 0.22)),
          columns: Array.from({ length: STRENGTHS }, (__, at) => css(mix(back, tinted, 0.35 + 0.65 * (at + 1) / STRENGTHS))),
          ink: luminance(tinted) > 140 ? '#15181c' : '#ffffff',
        };
      });
    });
    palette = { kinds, back: value('bg'), panel: value('panel'), line: value('line'), text: value('text'), soft: value('soft'), mark: value('mark'), accent: value('accent') };
  }

  function parts(hex) { return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)); }
  function css([red, green, blue]) { return `rgb(${red} ${green} ${blue})`; }
  function luminance([red, green, blue]) { return 0.299 * red + 0.587 * green + 0.114 * blue; }

  function resize() {
    const ratio = window.devicePixelRatio || 1;
    room = { width: canvas.clientWidth, height: canvas.clientHeight };
    canvas.width = Math.max(1, Math.round(room.width * ratio));
    canvas.height = Math.max(1, Math.round(room.height * ratio));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = '11px system-ui, "Noto Sans", "DejaVu Sans", sans-serif';
    context.textBaseline = 'middle';
    state.overview = null;
  }

  const scale = () => (room.width - LABELS) / (state.until - state.from);
  const x = (ns) => LABELS + (ns - state.from) * scale();

  function textOf(label) { return timeline.labels[label][2] || plain(timeline.labels[label][0]); }

  function fitted(label, width) {
    let measured = widths.get(label);
    if (measured === undefined) {
      measured = context.measureText(textOf(label)).width;
      widths.set(label, measured);
    }
    const text = textOf(label);
    if (measured <= width) return text;
    const letters = Math.floor(text.length * width / measured) - 1;
    return letters < 2 ? '' : `${text.slice(0, letters)}…`;
  }

  function shade(label) { return palette.kinds[timeline.labels[label][1]][label % SHADES]; }

  // Number of search matches or marks in first..last.
  const within = (before, first, last) => before[last] - before[first];
  // The first highlighted event in first..last while others are dimmed, by matches, marks or both;
  // -1 if there is none.
  function standing(first, last) {
    const { found, marks } = state;
    if (found && within(found.before, first, last) === 0) return -1;
    if (marks && within(events.markedBefore, first, last) === 0) return -1;
    let at = first;
    while (at < last && ((found && !found.bits[at]) || (marks && !events.marked[at]))) at += 1;
    return at < last ? at : -1;
  }

  function lane(one, y, height) {
    const per = scale();
    const { start, end, label } = events;
    const isDimming = Boolean(state.found || state.marks);
    let at = firstAbove(end, state.from, one.first, one.last);
    let run = null;
    const flush = () => {
      if (run) { context.fillStyle = run.style; context.fillRect(run.x, y, run.width, height); }
      run = null;
    };
    while (at < one.last && start[at] < state.until) {
      const left = LABELS + (start[at] - state.from) * per;
      const right = LABELS + (end[at] - state.from) * per;
      if (right - left >= 1.5) {
        flush();
        solid(at, Math.max(LABELS, left), Math.min(room.width, right), y, height);
        at += 1;
        continue;
      }
      const column = Math.max(LABELS, Math.floor(left));
      const from = state.from + (column - LABELS) / per;
      const until = state.from + (column + 1 - LABELS) / per;
      const next = Math.max(at + 1, firstAbove(start, until, at, one.last));
      // Events that continue into the next columns are drawn there as well.
      const last = next - 1;
      const share = busyBetween(events, one, from, until) * per;
      const strength = Math.min(STRENGTHS - 1, Math.floor(STRENGTHS * share));
      let style;
      if (isDimming) {
        const shown = standing(at, next);
        style = shown >= 0 ? shade(label[shown]).columns[STRENGTHS - 1] : shade(label[at]).faint;
      } else {
        style = shade(label[at]).columns[strength];
      }
      if (run && run.style === style && run.x + run.width >= column) run.width = Math.max(run.width, column + 1 - run.x);
      else { flush(); run = { x: column, width: 1, style }; }
      if (state.marks && within(events.markedBefore, at, next)) mark(column, column + 1, y, height);
      at = last > at && (end[last] - state.from) * per + LABELS > column + 2.5 ? last : next;
    }
    flush();
  }

  function solid(at, left, right, y, height) {
    const label = events.label[at];
    const tint = shade(label);
    const isFaint = (state.found && !state.found.bits[at]) || (state.marks && !events.marked[at]);
    context.fillStyle = isFaint ? tint.faint : tint.columns[STRENGTHS - 1];
    const width = Math.max(1, right - left - (right - left > 3 ? 0.6 : 0));
    context.fillRect(left, y, width, height);
    if (width > 26 && height >= 10) {
      const text = fitted(label, width - 6);
      if (text) { context.fillStyle = isFaint ? palette.soft : tint.ink; context.fillText(text, left + 3, y + height / 2 + 0.5); }
    }
    if (state.marks && events.marked[at]) mark(left, right, y, height);
  }

  function mark(left, right, y, height) {
    context.fillStyle = palette.mark;
    context.fillRect(left, y + height - 3, Math.max(1, right - left), 3);
  }

  function outline(at, style, width) {
    const spot = place(at);
    if (!spot) return;
    context.strokeStyle = style;
    context.lineWidth = width;
    context.strokeRect(spot.left, spot.y - 0.5, Math.max(2, spot.right - spot.left), spot.height + 1);
  }

  // The position of an event on the screen, even in a folded lane; null if its rank is not shown.
  function place(at) {
    const row = state.rowOf.get(events.lane[at]);
    if (!row) return null;
    const y = AXIS + OVERVIEW + row.y - state.top;
    return { left: x(events.start[at]), right: x(events.end[at]), y, height: row.height };
  }

  function arrows() {
    if (state.selected == null) return;
    const at = state.selected;
    const ends = events.call[at] >= 0 ? [[events.call[at], at]] : (events.launched.get(at) ?? []).slice(0, 300).map((work) => [at, work]);
    context.save();
    context.beginPath();
    context.rect(LABELS, AXIS + OVERVIEW, room.width - LABELS, room.height);
    context.clip();
    context.strokeStyle = palette.mark;
    context.fillStyle = palette.mark;
    context.lineWidth = 1.4;
    for (const [call, work] of ends) {
      const [from, to] = [place(call), place(work)];
      if (!from || !to) continue;
      const [x0, y0] = [Math.min(from.right, Math.max(from.left, from.right)), from.y + from.height];
      const [x1, y1] = [to.left, to.y + to.height / 2];
      const bend = Math.max(14, Math.abs(x1 - x0) / 2);
      context.beginPath();
      context.moveTo(x0, y0);
      context.bezierCurveTo(x0 + bend * 0.4, y0 + 24, x1 - bend, y1, x1 - 5, y1);
      context.stroke();
      context.beginPath();
      context.moveTo(x1, y1);
      context.lineTo(x1 - 7, y1 - 4);
      context.lineTo(x1 - 7, y1 + 4);
      context.fill();
    }
    for (const [call, work] of ends) outline(call === at ? work : call, palette.mark, 1.4);
    outline(at, palette.text, 2);
    context.restore();
  }

  function steps(row, y) {
    for (const step of state.steps) {
      if (step.rank !== row.rank) continue;
      const [left, right] = [x(step.at_ns), x(step.at_ns + step.host_ns)];
      if (right < LABELS || left > room.width) continue;
      const [from, to] = [Math.max(LABELS, left), Math.min(room.width, right)];
      context.fillStyle = palette.line;
      context.fillRect(from, y + 3, Math.max(1, to - from - 1), RANK - 6);
      if (to - from > 40) { context.fillStyle = palette.soft; context.fillText(`step ${step.number}`, from + 4, y + RANK / 2); }
    }
  }

  function axis() {
    context.fillStyle = palette.panel;
    context.fillRect(0, 0, room.width, AXIS + OVERVIEW);
    overview();
    const span = state.until - state.from;
    const tick = tickSize(span / Math.max(2, (room.width - LABELS) / 120));
    context.font = '11px system-ui, "Noto Sans", "DejaVu Sans", sans-serif';
    for (let time = Math.ceil(state.from / tick) * tick; time < state.until; time += tick) {
      const at = Math.round(x(time)) + 0.5;
      context.strokeStyle = palette.line;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(at, OVERVIEW + AXIS - 6);
      context.lineTo(at, room.height);
      context.stroke();
      context.fillStyle = palette.soft;
      if (at < room.width - 60) context.fillText(moment(time, span), at + 3, OVERVIEW + AXIS / 2);
    }
  }

  // The lanes of the overview: one list per device, or per thread if there is no device work.
  function workers() {
    const found = new Map();
    const tracks = (one) => timeline.tracks[one.track];
    const ofDevices = events.lanes.filter((one) => tracks(one).side === 'device');
    for (const one of ofDevices.length ? ofDevices : events.lanes.filter((lane) => lane.depth === 0)) {
      const key = ofDevices.length ? `${tracks(one).rank}/${tracks(one).device}` : one.track;
      found.set(key, [...(found.get(key) ?? []), one]);
    }
    return { what: ofDevices.length ? 'devices busy' : 'threads busy', lanes: [...found.values()] };
  }

  // The share of busy devices over time, and the visible range. At full height, all devices are busy.
  function overview() {
    const width = Math.max(1, Math.floor(room.width - LABELS));
    const whole = timeline.end_ns - timeline.start_ns;
    if (!state.overview || state.overview.length !== width) {
      const { what, lanes } = workers();
      state.overviewOf = what;
      state.overview = Array.from({ length: width }, (_, at) => {
        const from = timeline.start_ns + whole * at / width;
        const until = timeline.start_ns + whole * (at + 1) / width;
        const busy = (all) => Math.min(1, sum(all.map((one) => Math.max(0, busyBetween(events, one, from, until)))) / Math.max(1, until - from));
        return sum(lanes.map(busy)) / Math.max(1, lanes.length);
      });
    }
    context.fillStyle = palette.kinds[0][0].columns[1];
    state.overview.forEach((share, at) => {
      const tall = (OVERVIEW - 6) * share;
      if (tall > 0) context.fillRect(LABELS + at, OVERVIEW - 2 - tall, 1, tall);
    });
    context.fillStyle = palette.soft;
    context.fillText(say(state.overviewOf), 8, OVERVIEW / 2);
    const place = (ns) => LABELS + width * (ns - timeline.start_ns) / Math.max(1, whole);
    context.strokeStyle = palette.accent;
    context.lineWidth = 1.5;
    context.strokeRect(place(state.from), 1.5, Math.max(3, place(state.until) - place(state.from)), OVERVIEW - 3);
  }

  function draw() {
    context.fillStyle = palette.back;
    context.fillRect(0, 0, room.width, room.height);
    axis();
    context.save();
    context.beginPath();
    context.rect(0, AXIS + OVERVIEW, room.width, room.height);
    context.clip();
    for (const row of state.rows) {
      const y = AXIS + OVERVIEW + row.y - state.top;
      if (y > room.height || y + row.height < AXIS + OVERVIEW) continue;
      if (row.kind === 'rank') {
        context.fillStyle = palette.panel;
        context.fillRect(0, y, room.width, row.height - 1);
        steps(row, y);
      }
      for (const one of row.lanes) lane(one, y, row.kind === 'rank' ? row.height - 2 : row.height - 1);
    }
    stretch();
    names();
    arrows();
    context.restore();
  }

  // The selected range: everything outside it is veiled.
  function stretch() {
    const { chosen } = state;
    if (!chosen) return;
    const [left, right] = [Math.max(LABELS, x(chosen.from)), Math.min(room.width, x(chosen.until))];
    context.globalAlpha = 0.45;
    context.fillStyle = palette.back;
    context.fillRect(LABELS, 0, Math.max(0, left - LABELS), room.height);
    context.fillRect(right, 0, Math.max(0, room.width - right), room.height);
    context.globalAlpha = 1;
    context.fillStyle = palette.accent;
    for (const edge of [left, right]) context.fillRect(edge - 0.5, AXIS + OVERVIEW, 1, room.height);
  }

  function names() {
    context.fillStyle = palette.back;
    context.fillRect(0, AXIS + OVERVIEW, LABELS - 1, room.height);
    for (const row of state.rows) {
      const y = AXIS + OVERVIEW + row.y - state.top;
      if (y > room.height || y + row.height < AXIS + OVERVIEW) continue;
      if (row.kind === 'rank') {
        context.fillStyle = palette.panel;
        context.fillRect(0, y, LABELS - 1, row.height - 1);
      }
      if (row.text) {
        context.fillStyle = row.kind === 'rank' ? palette.text : palette.soft;
        const sign = row.isOpen == null ? '' : row.isOpen ? '▾ ' : '▸ ';
        context.fillText(cut(`${sign}${row.text}`, LABELS - 14), row.kind === 'rank' ? 6 : 14, y + (row.kind === 'rank' ? RANK : LANE) / 2);
      }
    }
    context.fillStyle = palette.line;
    context.fillRect(LABELS - 1, 0, 1, room.height);
  }

  function cut(text, width) {
    let kept = text;
    while (kept.length > 3 && context.measureText(kept).width > width) kept = `${kept.slice(0, -2)}…`.replace('……', '…');
    return kept;
  }

  return { draw, resize, recolour, x, room: () => room, time: (px) => state.from + (px - LABELS) / scale() };
}
