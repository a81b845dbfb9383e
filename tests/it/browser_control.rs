//! The browser driver itself, without a gateway.

use super::support::browser::Browser;
use std::time::Duration;

#[tokio::test]
async fn a_page_is_opened_asked_and_heard() {
    let browser = Browser::start().await;
    let page = browser.open("data:text/html,<title>hello</title><script>console.error('oh')</script>").await;
    page.wait_until("document.title === 'hello'", Duration::from_secs(10)).await;
    assert_eq!(page.eval("Promise.resolve(6 * 7)").await, 42);
    let errors = page.errors();
    assert!(errors.len() == 1 && errors[0].contains("oh"), "{errors:?}");
    page.offline(true).await;
    assert_eq!(page.eval("navigator.onLine").await, false);
}
