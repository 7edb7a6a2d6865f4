// Critical path tab: the time on the path by category and by name, and the path over time.

function pathTab(report, go) {
  const { paths, evidence } = report.path;
  const name = (path) => (path.rank == null ? 'job' : `rank ${path.rank}`);
  const bars = paths.map((path) => ({ label: name(path), parts: path.parts.map((part) => ({ key: part.category, value: part.duration_ns })), value: nanos(path.window_ns) }));
  const keys = [...new Set(paths.flatMap((path) => path.parts.map((part) => part.category)))];
  const place = el('div');
  const choose = choice('path', paths.map((path, at) => [String(at), name(path)]), (value) => fill(paths[Number(value)]));

  function fill(path) {
    const ranks = [...new Set(path.strip.map(([rank]) => rank))].sort((a, b) => a - b);
    const rows = ranks.map((rank) => ({ label: `rank ${rank}`, spans: path.strip.filter(([one]) => one === rank).map(([, part, at, length]) => ({ key: path.parts[part].category, at, length })) }));
    place.replaceChildren(
      strips(majority(rows, [path.at_ns, path.at_ns + path.window_ns]), [path.at_ns, path.at_ns + path.window_ns], 22),
      el('div', { class: 'columns' },
        el('div', {}, heading('By category'), table([
          { title: 'category', kind: 'words', get: (row) => row.category }, { title: 'on the path', kind: 'ns', get: (row) => row.duration_ns, bar: (row) => colour(row.category) },
          { title: '% of window', kind: 'percent', get: (row) => row.window_pct }, { title: 'meaning', kind: 'wrap', get: (row) => meaning(row.category) }], path.parts, { sort: 1 })),
        el('div', {}, heading('Longest contributors'), table([
          { title: 'name', kind: 'name', get: (row) => row.name || '(nothing recorded)', cell: (row) => (row.name ? link(go.short(row.name), () => go.find(row.name), row.name) : '(nothing recorded)') },
          { title: 'category', kind: 'words', get: (row) => row.category }, { title: 'segments', kind: 'count', get: (row) => row.count },
          { title: 'on the path', kind: 'ns', get: (row) => row.duration_ns, bar: (row) => colour(row.category) }, { title: '% of window', kind: 'percent', get: (row) => row.window_pct }],
        path.contributors, { search: 'search contributors' }))));
  }

  if (paths.length) fill(paths[0]);
  return [heading('Critical paths'), note('A critical path is followed backwards from the end of the window: from each event to the one it waited for. Its segments cover the whole window. The path of the job changes between ranks.'),
    stackedBars(bars), legend(keys), el('div', { class: 'tools' }, el('h2', { text: 'A path over time' }), choose, press('show it on the timeline', () => go.path(), { title: 'the path of the first of these, with everything else dimmed' })),
    note('Each column has the color of the category with the largest share of its time.'), place,
    note(`Evidence: ${count(evidence.launches)} launches (${count(evidence.orphans)} kernels and copies without one), waits of the host: ${count(evidence.host_waits_recorded)} recorded and ${count(evidence.host_waits_inferred)} inferred, of streams: ${count(evidence.stream_waits_recorded)} and ${count(evidence.stream_waits_inferred)}, ${count(evidence.hand_offs)} hand-offs between threads, ${count(evidence.rendezvous)} collectives in which all ranks met.`)];
}
