//! The query of a request, decoded.

use url::form_urlencoded;

/// The parameters, in the order given. Bounded by the size of a request's head.
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads the part behind the question mark. What isn't UTF-8 shows as replacement characters.
    pub fn parse(text: Option<&str>) -> Self {
        Self(form_urlencoded::parse(text.unwrap_or_default().as_bytes()).into_owned().collect())
    }

    /// The first parameter of the name.
    pub fn first(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// All parameters of the name as one list with commas.
    pub fn list(&self, name: &str) -> String {
        let values: Vec<_> = self.0.iter().filter(|(n, _)| n == name).map(|(_, v)| v.as_str()).collect();
        values.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_lists_joined() {
        let query = Query::parse(Some("topics=quote:1%0A,quote:2&t=%F0%9F%92%A9&topics=quote%3A3&flag"));
        assert_eq!(query.list("topics"), "quote:1\n,quote:2,quote:3");
        assert_eq!(query.first("t"), Some("💩"));
        assert_eq!(query.first("flag"), Some(""));
        assert_eq!(query.first("none"), None);
        assert_eq!(Query::parse(None).list("topics"), "");
    }
}
