// Sends the server's trace to ui.perfetto.dev: opens it, pings it until it answers, and posts the bytes.

const PERFETTO = 'https://ui.perfetto.dev';
const PATIENCE_MS = 60000;

function perfettoButton(server, title) {
  const said = el('span', { class: 'note', role: 'status' });
  const button = press('open in ui.perfetto.dev', () => hand(server, title, (text) => { said.textContent = text; }));
  return [said, button];
}

async function hand(server, title, say) {
  // Opened before any wait, because browsers allow new windows only while a click is handled.
  const other = window.open(PERFETTO);
  if (!other) { say('the browser did not allow another window'); return; }
  say('reading the trace …');
  try {
    const [answer] = await Promise.all([fetch(server.trace), ready(other)]);
    if (!answer.ok) throw new Error(`the server returned ${answer.status}`);
    const buffer = await answer.arrayBuffer();
    other.postMessage({ perfetto: { buffer, title, fileName: server.file_name } }, PERFETTO);
    say(`sent ${bytes(buffer.byteLength)}`);
  } catch (problem) {
    say(`not sent: ${problem.message}`);
  }
}

// Messages are lost until the window listens, so it is pinged until it answers.
function ready(other) {
  return new Promise((done, failed) => {
    const asking = setInterval(() => other.postMessage('PING', PERFETTO), 100);
    const patience = setTimeout(() => end(() => failed(new Error('ui.perfetto.dev did not answer'))), PATIENCE_MS);
    const heard = (message) => {
      if (message.origin === PERFETTO && message.source === other && message.data === 'PONG') end(done);
    };
    function end(then) {
      clearInterval(asking);
      clearTimeout(patience);
      window.removeEventListener('message', heard);
      then();
    }
    window.addEventListener('message', heard);
  });
}
