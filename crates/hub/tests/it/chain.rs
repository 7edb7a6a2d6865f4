//! The way from a loss of the fleet to its cause, by clicks: band, workflow, user, run, finding,
//! and the timeline of a real trace.

use serde_json::Value;
use testkit::browser::Browser;

use crate::fixture::TestHub;
use crate::simulate;

/// A page of which a test waits for elements and clicks them.
struct ClickedPage(Browser);

impl ClickedPage {
    /// Evaluates an expression again and again until its value is true.
    fn wait(&mut self, condition: &str) {
        self.0.value(&format!(
            "new Promise((done) => {{ const look = () => {condition} ? done(1) : \
             setTimeout(look, 20); look(); }})"
        ));
    }

    /// Waits for an element that an expression returns, and clicks it.
    fn click(&mut self, element: &str) {
        self.wait(element);
        let click = "new MouseEvent('click', { bubbles: true })";
        self.0.value(&format!("{element}.dispatchEvent({click}) && 1"));
    }

    /// Clicks the name of a member in the list, which then shows its next dimension.
    fn choose(&mut self, name: &str, next: &str) {
        self.click(&format!(
            "[...document.querySelectorAll('td button.name')].find((one) => one.textContent === '{name}')"
        ));
        self.wait(&format!("document.body.innerText.includes('GPU idle, by {next}')"));
    }

    fn text(&mut self) -> String {
        self.0.value("document.body.innerText").as_str().unwrap().to_owned()
    }

    /// Loads the address of the page again, and checks that it shows the same.
    fn check_reload(&mut self, element: &str) {
        let (address, shown) = (self.0.value("location.href"), self.text());
        self.0.load(address.as_str().unwrap());
        self.wait(element);
        assert_eq!(self.text(), shown);
    }
}

/// Clicks from the loss of a fleet, which a simulation makes larger, to the timeline of the trace
/// of an order.
pub fn click_to_timeline(hub: &TestHub, viewer: &str, order: &Value) {
    let simulated = simulate::start(hub, ["4", "600", "6h"]).wait().unwrap();
    assert!(simulated.success());
    let Some(browser) = Browser::open_url(&format!("http://{}/", hub.address), "light") else {
        return;
    };
    let mut page = ClickedPage(browser);
    page.0.value(&format!(
        "document.getElementById('token').value = '{viewer}'; \
         document.querySelector('#login button').click()"
    ));
    page.click("document.querySelector('[data-part=\"4\"]')");
    page.wait("document.body.innerText.includes('GPU idle, by workflow')");
    let shown = page.text();
    assert!(shown.contains("image-search") || shown.contains("notebook"), "{shown}");
    let run = order["run"].as_str().unwrap();
    page.choose(order["workflow"].as_str().unwrap(), "user");
    page.choose(order["user"].as_str().unwrap(), "run");
    page.choose(run, "host");
    page.check_reload("document.querySelector('[data-part=\"4\"].chosen')");
    let link = "document.querySelector('.chips a')";
    assert!(page.text().contains(&format!("run: {run}")));
    page.click(link);
    page.click("document.querySelector('[data-tab=traces]')");
    page.wait("document.querySelector('.issue a')");
    let shown = page.text();
    assert!(shown.contains("data loading stall") && shown.contains(run), "{shown}");
    page.check_reload("document.querySelector('.issue a')");
    // A click opens the report in another tab, which this browser does not follow.
    let report = page.0.value("document.querySelector('.issue a').href");
    page.0.load(report.as_str().unwrap());
    page.click("document.querySelector('#tab-findings')");
    page.click(
        "[...document.querySelectorAll('#panel-findings details button')]\
         .find((one) => one.title.includes('timeline'))",
    );
    page.wait("document.querySelector('#tab-timeline[aria-selected=true]')");
    // The timeline shows the event of the finding, or all events of its name.
    let shown = "rowmill.timeline.state.selected !== null || rowmill.timeline.state.found?.order.length > 0";
    assert_eq!(page.0.value(shown), true);
    assert_eq!(page.0.value("rowmill.errors.length"), 0);
    assert_eq!(page.0.complaints(), Vec::<String>::new());
    if let Some(folder) = std::env::var_os("ROWMILL_PICTURES") {
        page.0.picture(&std::path::Path::new(&folder).join("hub-chain-timeline.png"));
    }
}
