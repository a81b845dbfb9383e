use super::*;

#[test]
fn an_error_is_told_once_per_interval_with_those_that_were_not() {
    let mut log = ErrorLog::default();
    let error = io::Error::from_raw_os_error(libc::EMFILE);
    log.note(&error, Duration::ZERO);
    assert_eq!((log.n_unsaid, log.next_at), (0, LOG_INTERVAL));
    for _ in 0..1_000 {
        log.note(&error, LOG_INTERVAL - Duration::from_millis(1));
    }
    assert_eq!(log.n_unsaid, 1_000);
    log.note(&error, LOG_INTERVAL);
    assert_eq!((log.n_unsaid, log.next_at), (0, LOG_INTERVAL * 2));
}

#[test]
fn each_error_is_classed_by_what_to_do_about_it() {
    for (code, class) in [
        (libc::EMFILE, AcceptError::Descriptors),
        (libc::ENFILE, AcceptError::Descriptors),
        (libc::ENOMEM, AcceptError::Memory),
        (libc::ECONNABORTED, AcceptError::Connection),
        (libc::EPERM, AcceptError::Connection),
        (libc::EINVAL, AcceptError::Other),
    ] {
        assert_eq!(classify(&io::Error::from_raw_os_error(code)), class, "{code}");
    }
}
