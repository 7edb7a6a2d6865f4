// Bars of a recorded and a predicted step in lanes. Both have the same scale and zoom together.

const BAR_FILL = { operator: 'var(--c-operator)', compute: 'var(--c-compute)', memory: 'var(--c-memory)', communication: 'var(--c-communication)' };

// sides: [[title, lanes]]; act(side, place) is called when a bar is selected.
function barsView(names, act) {
  const LANE = 18, LEFT = 150, WIDTH = 1200;
  const element = el('div', {});
  let sides = [], whole = 1, from = 0, until = 1, chosen = new Set();

  function draw() {
    const pictures = sides.map(([title, { lanes, bars }, isChosen], side) => {
      const height = LANE * lanes.length + 20;
      const x = (ns) => LEFT + (ns - from) / (until - from) * (WIDTH - LEFT);
      const tick = tickSize((until - from) / 8);
      const ticks = [];
      for (let at = Math.ceil(from / tick) * tick; at <= until; at += tick) {
        ticks.push(svg('line', { x1: x(at), x2: x(at), y1: 0, y2: height - 16, stroke: 'var(--line)' }),
          svg('text', { x: x(at) + 2, y: height - 4, fill: 'var(--soft)', 'font-size': 10, text: moment(at, until - from) }));
      }
      const shown = bars.map((bar, place) => [bar, place]).filter(([bar]) => bar.end_ns >= from && bar.start_ns <= until);
      return el('div', {}, el('h3', { text: title }),
        svg('svg', { viewBox: `0 0 ${WIDTH} ${height}`, width: '100%', role: 'img', 'aria-label': title, on: { wheel: (event) => zoom(event), pointerdown: (event) => drag(event) } },
          ticks,
          lanes.map((lane, at) => svg('text', { x: 4, y: at * LANE + 13, fill: 'var(--soft)', 'font-size': 11, text: lane })),
          shown.map(([bar, place]) => {
            const left = Math.max(LEFT, x(bar.start_ns));
            const width = Math.max(0.7, Math.min(WIDTH, x(bar.end_ns)) - left);
            if (x(bar.end_ns) < LEFT) return null;
            return svg('rect', { x: left, y: bar.lane * LANE + 2, width, height: LANE - 4, fill: BAR_FILL[bar.kind], stroke: isChosen && chosen.has(place) ? 'var(--mark)' : null, 'stroke-width': 2, on: { click: () => act(side, place) } },
              svg('title', { text: `${names()[bar.name]}\n${names()[bar.sizes]}\n${nanos(bar.end_ns - bar.start_ns)} from ${nanos(bar.start_ns)}` }));
          })));
    });
    element.replaceChildren(...pictures);
  }

  function zoom(event) {
    event.preventDefault();
    const box = event.currentTarget.getBoundingClientRect();
    const at = from + Math.max(0, ((event.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT)) * (until - from);
    const size = Math.min(whole, Math.max(1000, (until - from) * (event.deltaY > 0 ? 1.3 : 1 / 1.3)));
    const left = (at - from) / (until - from);
    move(at - left * size, size);
  }

  function drag(event) {
    const box = event.currentTarget.getBoundingClientRect();
    let last = event.clientX;
    const moved = (next) => {
      const ns = (next.clientX - last) / box.width * WIDTH / (WIDTH - LEFT) * (until - from);
      if (Math.abs(next.clientX - last) > 2) { last = next.clientX; move(from - ns, until - from); }
    };
    const done = () => { window.removeEventListener('pointermove', moved); window.removeEventListener('pointerup', done); };
    window.addEventListener('pointermove', moved);
    window.addEventListener('pointerup', done);
  }

  function move(start, size) {
    from = Math.max(0, Math.min(whole - size, start));
    until = from + size;
    draw();
  }

  return {
    element,
    show(next, isWhole) {
      sides = next;
      const before = whole;
      whole = Math.max(1, ...sides.flatMap(([, { bars }]) => bars.map((bar) => bar.end_ns)));
      if (isWhole || until === before) { from = 0; until = whole; }
      draw();
    },
    choose(places) { chosen = new Set(places); draw(); },
  };
}
