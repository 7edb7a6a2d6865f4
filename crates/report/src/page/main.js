// Entry point of the page: reads the data, creates the tabs, and fills each tab when it is first opened.

const errors = [];
window.addEventListener('error', (problem) => errors.push(String(problem.message)));
window.addEventListener('unhandledrejection', (problem) => errors.push(String(problem.reason)));

function start() {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const report = read('data');
  const server = read('server');
  const { job } = report.summary;
  isPool = job.is_pool;
  document.getElementById('title').textContent = report.title;
  document.getElementById('about').textContent = [`${count(job.rank_count)} rank${job.rank_count === 1 ? '' : 's'}`, `${count(job.event_count)} events`, windowText(job)].join(' · ');
  if (report.missing) document.getElementById('about').before(el('p', { class: 'broken', role: 'alert', text: report.missing }));
  document.getElementById('footer').textContent = `${report.program} · the clocks of all ranks are aligned · the same traces give the same page`;
  if (server) document.getElementById('actions').append(...perfettoButton(server, report.title));

  const shorts = new Map(report.timeline.labels.filter(([, , short]) => short).map(([name, , short]) => [name, short]));
  let timeline = null;
  const go = {
    open: (id) => open(id),
    // Short names of device work omit types and arguments.
    short: (name) => shorts.get(name) ?? name,
    find: (name) => view().find(name),
    event: (rank, name, at, length) => view().choose(rank, name, at, length),
    span: (from, until) => view().show(from, until),
    path: () => view().showPath(),
    rank: (rank) => {
      const rows = report.steps.rows.filter((row) => row.rank === rank);
      const own = view();
      own.show(rows.length ? rows[0].at_ns : report.timeline.start_ns, rows.length ? rows[0].at_ns + rows[0].host_ns : report.timeline.end_ns);
    },
  };
  const tabs = [
    ['summary', 'Summary', () => summaryTab(report, go)], ['findings', 'Findings', () => findingsTab(report, go)], ['ranks', 'Steps and ranks', () => ranksTab(report, go)],
    ['idle', 'Idle causes', () => idleTab(report, go)], ['gpu', 'GPU', () => gpuTab(report, go)], ['cpu', 'CPU', () => cpuTab(report, go)],
    ['network', 'Network', () => networkTab(report, go)], ...(isPool ? [] : [['memory', 'Memory', () => memoryTab(report)]]),
    ['path', 'Critical path', () => pathTab(report, go)], ['timeline', 'Timeline', () => [view().element]],
  ];

  function view() {
    timeline ??= timelineView(report, () => open('timeline'));
    return timeline;
  }

  const list = document.getElementById('tabs');
  const panels = document.getElementById('panels');
  const parts = new Map(tabs.map(([id, title, fill]) => {
    const button = el('button', { type: 'button', role: 'tab', id: `tab-${id}`, 'aria-controls': `panel-${id}`, text: say(title), on: { click: () => open(id) } });
    const panel = el('section', { role: 'tabpanel', id: `panel-${id}`, 'aria-labelledby': `tab-${id}`, hidden: true });
    list.append(button);
    panels.append(panel);
    return [id, { button, panel, fill, isFilled: false }];
  }));

  function filled(part) {
    if (!part.isFilled) {
      part.isFilled = true;
      part.panel.append(...part.fill().filter(Boolean));
    }
  }

  function open(id) {
    const chosen = parts.has(id) ? id : 'summary';
    for (const [name, part] of parts) {
      const isChosen = name === chosen;
      part.button.setAttribute('aria-selected', String(isChosen));
      part.button.tabIndex = isChosen ? 0 : -1;
      part.panel.hidden = !isChosen;
    }
    filled(parts.get(chosen));
    if (location.hash.slice(1) !== chosen) history.replaceState(null, '', `#${chosen}`);
  }

  list.addEventListener('keydown', (key) => {
    const names = [...parts.keys()];
    const at = names.findIndex((name) => parts.get(name).button.getAttribute('aria-selected') === 'true');
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1 }[key.key];
    if (next === undefined) return;
    key.preventDefault();
    const name = names[(next + names.length) % names.length];
    open(name);
    parts.get(name).button.focus();
  });
  window.addEventListener('hashchange', () => open(location.hash.slice(1)));
  window.addEventListener('beforeprint', () => { for (const [name, part] of parts) if (name !== 'timeline') filled(part); });
  open(location.hash.slice(1) || 'summary');
  return { tabs: [...parts.keys()], open, errors, get timeline() { return view(); } };
}

window.rowmill = start();
