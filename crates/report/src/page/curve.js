// Curves over steps that share one cursor.

// Chooses at most `most` round values within [low, high] for an axis.
function axisTicks(low, high, most) {
  const rough = Math.max(1e-12, (high - low) / most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((times) => times * power).find((step) => step >= rough * 0.999999);
  const ticks = [];
  for (let at = Math.ceil(low / size - 1e-9); at * size <= high + size * 1e-9; at += 1) ticks.push(at * size);
  return { ticks, decimals: Math.max(0, -Math.floor(Math.log10(size) + 1e-9)) };
}

// Formats a step number briefly: 800, 1.5 k, 20 k, 3 M.
function shortCount(value) {
  const [size, unit] = value >= 1e6 ? [1e6, ' M'] : value >= 1e3 ? [1e3, ' k'] : [1, ''];
  return `${Number((value / size).toFixed(2))}${unit}`;
}

// Chooses the range of an axis. A few outliers must not flatten the curve, so they are drawn at the edge.
function axisRange(values, { from, marks = [] }) {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (share) => sorted[Math.round((sorted.length - 1) * share)];
  let [low, high] = [sorted[0], sorted.at(-1)];
  if (sorted.length >= 20 && high - low > 3 * (at(0.97) - at(0.03))) [low, high] = [at(0.03), at(0.97)];
  for (const mark of marks) { low = Math.min(low, mark.value); high = Math.max(high, mark.value); }
  if (from != null) low = Math.min(from, low);
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [from != null && low === from ? low : low - room, high + room];
}

// An exponential moving average.
function smoothed(points) {
  const keep = 1 - 2 / (1 + Math.max(3, points.length / 25));
  let mean = null;
  return points.map(([step, value]) => {
    mean = mean == null ? value : keep * mean + (1 - keep) * value;
    return [step, mean];
  });
}

// Creates the curves of a page for steps from `first` to `last`. All show the same cursor.
function curveSet(first, last, best) {
  const members = [];
  const near = (points, step) => points.reduce((found, point) => (found == null || Math.abs(point[0] - step) < Math.abs(found[0] - step) ? point : found), null);
  const move = (step) => members.forEach((member) => member.cursor(step));

  // series: { name, style, points: [[step, value]], dots?, smooth? }; options: { show, from?, marks?: [{ value, label }], rest }
  return function curve(title, series, { show, from, marks = [], rest }) {
    const [left, width, height] = [46, 500, 150];
    const shown = series.filter((one) => one.points.length > 0);
    const [low, high] = axisRange(shown.flatMap((one) => one.points.map((point) => point[1])), { from, marks });
    const x = (step) => left + width * (step - first) / Math.max(1, last - first);
    const y = (value) => 8 + height * (1 - (Math.max(low, Math.min(high, value)) - low) / (high - low));
    const picture = svg('svg', { width: '100%', viewBox: `0 0 ${left + width + 14} ${height + 30}`, role: 'img', 'aria-label': `${title}: ${rest}` });
    const { ticks, decimals } = axisTicks(low, high, 5);
    for (const value of ticks) {
      picture.append(svg('line', { class: 'axis', x1: left, x2: left + width, y1: y(value), y2: y(value) }),
        svg('text', { x: left - 6, y: y(value) + 4, 'text-anchor': 'end', text: show(value, decimals) }));
    }
    for (const step of axisTicks(first, last, 5).ticks.filter((one) => Number.isInteger(one))) {
      picture.append(svg('text', { x: x(step), y: height + 24, 'text-anchor': 'middle', text: shortCount(step) }));
    }
    for (const mark of marks) {
      picture.append(svg('line', { class: 'mark-line', x1: left, x2: left + width, y1: y(mark.value), y2: y(mark.value) }),
        svg('text', { class: 'mark-text', x: left + 4, y: y(mark.value) - 4, text: mark.label }));
    }
    if (best != null) picture.append(svg('line', { class: 'best-line', x1: x(best), x2: x(best), y1: 8, y2: height + 8 }, svg('title', { text: 'best evaluation' })));
    const line = (points, style, faint) => picture.append(svg('path', { class: `curve ${style}${faint ? ' faint' : ''}`, d: points.map(([step, value], at) => `${at ? 'L' : 'M'}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join('') }));
    for (const one of shown) {
      const isSmooth = one.smooth && one.points.length >= 40;
      line(one.points, one.style, isSmooth);
      if (isSmooth) line(smoothed(one.points), one.style);
      const dots = one.dots && one.points.length <= 60 ? one.points : one.points.length === 1 ? one.points : [];
      for (const [step, value] of dots) picture.append(svg('circle', { class: `dot ${one.style}`, cx: x(step), cy: y(value), r: step === best ? 4 : 2.5 }));
    }
    const hair = svg('line', { class: 'hair', y1: 8, y2: height + 8, visibility: 'hidden' });
    picture.append(hair);
    const readout = el('span', { class: 'readout', text: rest });
    members.push({
      cursor(step) {
        hair.setAttribute('visibility', step == null ? 'hidden' : 'visible');
        if (step == null) { readout.textContent = rest; return; }
        hair.setAttribute('x1', x(step));
        hair.setAttribute('x2', x(step));
        const parts = shown.map((one) => [one, near(one.points, step)]);
        const names = parts.map(([one, [, value]]) => `${shown.length > 1 ? `${one.name} ` : ''}${show(value)}`);
        readout.textContent = `step ${count(parts[0][1][0])}: ${names.join(', ')}`;
      },
    });
    picture.addEventListener('pointermove', (event) => {
      const box = picture.getBoundingClientRect();
      const at = (event.clientX - box.left) * (left + width + 14) / box.width;
      move(Math.round(Math.max(first, Math.min(last, first + (at - left) * (last - first) / width))));
    });
    picture.addEventListener('pointerleave', () => move(null));
    const names = shown.length > 1 ? el('ul', { class: 'legend' }, shown.map((one) => el('li', {}, el('i', { class: one.style }), one.name))) : null;
    return el('figure', { class: 'curve-card' }, el('figcaption', {}, el('b', { text: title }), readout), picture, names);
  };
}
