// The critical path: what the window's length consisted of, by category and by name.

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
          { title: '% of window', kind: 'percent', get: (row) => row.window_pct }, { title: 'which is', kind: 'wrap', get: (row) => meaning(row.category) }], path.parts, { sort: 1 })),
        el('div', {}, heading('Longest contributors'), table([
          { title: 'name', kind: 'name', get: (row) => row.name || '(nothing recorded)', cell: (row) => (row.name ? link(go.short(row.name), () => go.find(row.name), row.name) : '(nothing recorded)') },
          { title: 'category', kind: 'words', get: (row) => row.category }, { title: 'stretches', kind: 'count', get: (row) => row.count },
          { title: 'on the path', kind: 'ns', get: (row) => row.duration_ns, bar: (row) => colour(row.category) }, { title: '% of window', kind: 'percent', get: (row) => row.window_pct }],
        path.contributors, { search: 'search contributors' }))));
  }

  if (paths.length) fill(paths[0]);
  return [heading('What the windows consist of'), note('Back from the end of a window, each step goes to what that moment waited for; the stretches tile the window. The job\'s path hops between ranks.'),
    stackedBars(bars), legend(keys), el('div', { class: 'tools' }, el('h2', { text: 'One path over time' }), choose, press('show it on the timeline', () => go.path(), { title: 'the path of the first of these, with everything else dimmed' })),
    note('Each column has the colour of what the path spends most of its time on there.'), place,
    note(`Rests on ${count(evidence.launches)} launches (${count(evidence.orphans)} pieces of work without one), waits of the host: ${count(evidence.host_waits_recorded)} recorded and ${count(evidence.host_waits_inferred)} inferred, of streams: ${count(evidence.stream_waits_recorded)} and ${count(evidence.stream_waits_inferred)}, ${count(evidence.hand_offs)} hand-offs between threads, ${count(evidence.rendezvous)} collectives in which all ranks met.`)];
}
