// Small plots: stacked bars, histograms, box plots, curves, strips.

// rows: { label, parts: [{ key, value }], whole?, value?, act? }
function stackedBars(rows, show = nanos) {
  const longest = Math.max(1, ...rows.map((row) => row.whole ?? sum(row.parts.map((part) => part.value))));
  const cells = rows.flatMap((row) => {
    const bar = el('div', { class: 'bar', role: 'img', 'aria-label': `${row.label}: ${row.parts.map((part) => `${words(part.key)} ${show(part.value)}`).join(', ')}` },
      row.parts.filter((part) => part.value > 0).map((part) => {
        const share = 100 * part.value / longest;
        const of = 100 * part.value / Math.max(1, row.whole ?? sum(row.parts.map((one) => one.value)));
        const text = share > 7 ? `${of.toFixed(0)} %` : '';
        return el('span', { class: colour(part.key), text, title: `${words(part.key)}: ${show(part.value)}, ${of.toFixed(1)} %`,
          style: { width: `${share}%`, 'padding-left': share > 7 ? null : '0' } });
      }));
    const label = row.act ? link(row.label, row.act) : row.label;
    return [el('div', { class: 'label' }, label), bar, el('div', { class: 'value', text: row.value ?? '' })];
  });
  return el('div', { class: 'bars' }, cells);
}

// Bins of powers of two, ascending: [least, how many].
function spark(bins, key) {
  const [width, height] = [110, 18];
  const picture = svg('svg', { class: 'spark', viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true' });
  if (bins.length === 0) return picture;
  const place = (low) => (low < 1 ? 0 : Math.log2(low) + 1);
  const [first, last] = [place(bins[0][0]), place(bins.at(-1)[0])];
  const step = Math.min(12, width / (last - first + 1));
  const most = Math.max(...bins.map(([, many]) => many));
  for (const [low, many] of bins) {
    const tall = Math.max(1, (height - 1) * many / most);
    picture.append(svg('rect', { class: colour(key), x: (place(low) - first) * step, y: height - tall, width: Math.max(1, step - 1), height: tall },
      svg('title', { text: `from ${nanos(low)}: ${count(many)}` })));
  }
  return picture;
}

function histogram(bins, key, show) {
  const [height, room] = [90, 18];
  const place = (low) => (low < 1 ? 0 : Math.log2(low) + 1);
  const [first, last] = [place(bins[0][0]), place(bins.at(-1)[0])];
  const step = 56;
  const width = Math.max(60, (last - first + 1) * step);
  const most = Math.max(...bins.map(([, many]) => many));
  const picture = svg('svg', { width, height: height + room, viewBox: `0 0 ${width} ${height + room}`, role: 'img', 'aria-label': 'histogram' });
  for (const [low, many] of bins) {
    const tall = Math.max(1, (height - 14) * many / most);
    const x = (place(low) - first) * step;
    picture.append(svg('rect', { class: colour(key), x, y: height - tall, width: step - 2, height: tall }, svg('title', { text: `from ${show(low)}: ${count(many)}` })));
    picture.append(svg('text', { x: x + step / 2 - 1, y: height - tall - 3, 'text-anchor': 'middle', text: count(many) }));
    picture.append(svg('text', { x, y: height + 13, 'text-anchor': 'start', text: show(low) }));
  }
  picture.append(svg('line', { class: 'axis', x1: 0, x2: width, y1: height, y2: height }));
  return picture;
}

// Quantiles of several rows on one logarithmic axis: { label, p5, p25, p50, p75, p95, min, max }.
function spreads(rows, key) {
  const [left, width, step] = [70, 520, 18];
  const low = Math.log10(Math.max(1, Math.min(...rows.map((row) => row.min))));
  const high = Math.log10(Math.max(2, ...rows.map((row) => row.max)));
  const x = (ns) => left + width * (Math.log10(Math.max(1, ns)) - low) / Math.max(0.05, high - low);
  const height = rows.length * step + 22;
  const picture = svg('svg', { width: left + width + 60, height, viewBox: `0 0 ${left + width + 60} ${height}`, role: 'img', 'aria-label': 'spread per rank' });
  for (let power = Math.ceil(low); power <= Math.floor(high); power += 1) {
    picture.append(svg('line', { class: 'axis', x1: x(10 ** power), x2: x(10 ** power), y1: 0, y2: rows.length * step }));
    picture.append(svg('text', { x: x(10 ** power), y: height - 6, 'text-anchor': 'middle', text: nanos(10 ** power) }));
  }
  rows.forEach((row, at) => {
    const y = at * step + step / 2;
    picture.append(svg('text', { x: left - 8, y: y + 4, 'text-anchor': 'end', text: row.label }));
    picture.append(svg('line', { class: 'whisker', x1: x(row.min), x2: x(row.max), y1: y, y2: y }));
    picture.append(svg('rect', { class: colour(key), x: x(row.p25), width: Math.max(2, x(row.p75) - x(row.p25)), y: y - 5, height: 10, opacity: 0.75 },
      svg('title', { text: `min ${nanos(row.min)}, p25 ${nanos(row.p25)}, p50 ${nanos(row.p50)}, p75 ${nanos(row.p75)}, p95 ${nanos(row.p95)}, max ${nanos(row.max)}` })));
    picture.append(svg('line', { class: 'median', x1: x(row.p50), x2: x(row.p50), y1: y - 6, y2: y + 6 }));
    picture.append(svg('line', { class: 'whisker', x1: x(row.p95), x2: x(row.p95), y1: y - 4, y2: y + 4 }));
  });
  return picture;
}

// A curve over time in steps: points [time, ...values]; series: names of CSS classes.
function curves(points, series, show) {
  const [left, width, height] = [78, 1000, 170];
  const [first, last] = [points[0][0], points.at(-1)[0]];
  const most = Math.max(1, ...points.flatMap((point) => point.slice(1)));
  const x = (ns) => left + width * (ns - first) / Math.max(1, last - first);
  const y = (value) => 8 + (height - 8) * (1 - value / most);
  const picture = svg('svg', { width: '100%', viewBox: `0 0 ${left + width + 20} ${height + 24}`, role: 'img', 'aria-label': 'over time' });
  for (let at = 0; at <= 4; at += 1) {
    const value = most * at / 4;
    picture.append(svg('line', { class: 'axis', x1: left, x2: left + width, y1: y(value), y2: y(value) }));
    picture.append(svg('text', { x: left - 6, y: y(value) + 4, 'text-anchor': 'end', text: show(value) }));
  }
  const tick = tickSize((last - first) / 7);
  for (let time = Math.ceil(first / tick) * tick; time <= last; time += tick) {
    picture.append(svg('text', { x: x(time), y: height + 18, text: moment(time, last - first) }));
  }
  series.forEach((name, at) => {
    let path = '';
    points.forEach((point) => {
      const [px, py] = [x(point[0]).toFixed(1), y(point[at + 1]).toFixed(1)];
      path += path ? `H${px}V${py}` : `M${px} ${py}`;
    });
    picture.append(svg('path', { class: `curve ${name}`, d: path }));
  });
  return picture;
}

// Reduces rows to one category per column of the plot: the one with the largest share of all rows.
// Otherwise, spans narrower than a column would hide each other in drawing order.
function majority(rows, [from, until], columns = STRIP_WIDTH) {
  const per = Math.max(1e-9, (until - from) / columns);
  const shares = Array.from({ length: columns }, () => new Map());
  rows.forEach((row, index) => {
    for (const span of row.spans) {
      const [first, last] = [(span.at - from) / per, (span.at + span.length - from) / per];
      for (let at = Math.max(0, Math.floor(first)); at < Math.min(columns, last); at += 1) {
        const covered = Math.min(last, at + 1) - Math.max(first, at);
        if (covered <= 0) continue;
        const one = shares[at].get(`${index} ${span.key}`) ?? { index, key: span.key, share: 0 };
        one.share += covered;
        shares[at].set(`${index} ${span.key}`, one);
      }
    }
  });
  const spans = rows.map(() => []);
  let before = null;
  shares.forEach((known, at) => {
    const most = [...known.values()].reduce((best, one) => (best && best.share >= one.share ? best : one), null);
    if (before && most && before.index === most.index && before.key === most.key) {
      before.count += 1;
      before.share += most.share;
    } else {
      before = most && { ...most, first: at, count: 1 };
      if (before) spans[before.index].push(before);
    }
  });
  return rows.map((row, index) => ({ ...row,
    spans: spans[index].map((one) => ({ key: one.key, at: from + one.first * per, length: one.count * per,
      title: `${words(one.key)}: ${nanos(one.share * per)} of ${nanos(one.count * per)}` })) }));
}

const STRIP_WIDTH = 1060;

// Single times of several rows on one axis from 0: { label, values, p50 }. Each time is a line.
function strokes(rows, key) {
  const [left, width, step] = [70, 760, 30];
  const most = Math.max(1, ...rows.flatMap((row) => row.values)) * 1.04;
  const x = (ns) => left + width * ns / most;
  const height = rows.length * step + 20;
  const picture = svg('svg', { width: left + width + 40, height, viewBox: `0 0 ${left + width + 40} ${height}`, role: 'img',
    'aria-label': rows.map((row) => `${row.label}: median ${nanos(row.p50)}`).join(', ') });
  const tick = tickSize(most / 6);
  for (let time = 0; time <= most; time += tick) {
    picture.append(svg('line', { class: 'axis', x1: x(time), x2: x(time), y1: 0, y2: rows.length * step }));
    picture.append(svg('text', { x: x(time), y: height - 5, 'text-anchor': 'middle', text: nanos(time) }));
  }
  rows.forEach((row, at) => {
    const y = at * step;
    picture.append(svg('text', { x: left - 8, y: y + step / 2 + 4, 'text-anchor': 'end', text: row.label }));
    for (const value of row.values) picture.append(svg('rect', { class: colour(key), x: x(value) - 1, width: 2, y: y + 7, height: step - 14, opacity: 0.7 }, svg('title', { text: nanos(value) })));
    picture.append(svg('line', { class: 'median', x1: x(row.p50), x2: x(row.p50), y1: y + 3, y2: y + step - 3 }, svg('title', { text: `median ${nanos(row.p50)}` })));
  });
  return picture;
}

// Lanes over time: rows { label, spans: [{ key, at, length, title }] }.
function strips(rows, [from, until], step = 18) {
  const [left, width] = [64, STRIP_WIDTH];
  const x = (ns) => left + width * (ns - from) / Math.max(1, until - from);
  const height = rows.length * step + 20;
  const picture = svg('svg', { width: '100%', viewBox: `0 0 ${left + width + 16} ${height}`, role: 'img', 'aria-label': 'over time' });
  const tick = tickSize((until - from) / 7);
  for (let time = Math.ceil(from / tick) * tick; time <= until; time += tick) {
    picture.append(svg('line', { class: 'axis', x1: x(time), x2: x(time), y1: 0, y2: rows.length * step }));
    picture.append(svg('text', { x: x(time) + 3, y: height - 5, text: moment(time, until - from) }));
  }
  rows.forEach((row, at) => {
    picture.append(svg('text', { x: left - 8, y: at * step + step / 2 + 4, 'text-anchor': 'end', text: row.label }));
    for (const span of row.spans) {
      picture.append(svg('rect', { class: colour(span.key), x: x(span.at), width: Math.max(0.6, x(span.at + span.length) - x(span.at)), y: at * step + 2, height: step - 4 },
        svg('title', { text: span.title })));
    }
  });
  return picture;
}
