//! What a site lets us read: its `robots.txt` (RFC 9309).

use std::collections::HashMap;
use std::time::Duration;

use reqwest::Url;
use texting_robots::Robot;
use turnflow_engine::connector::ConnectorError;

use super::client::{Reply, Validators};
use super::page;
use super::round::Site;
use crate::remote::lasting;

/// Maximum size of a `robots.txt`, in bytes: that of RFC 9309.
const MAX_ROBOTS: u64 = 500 << 10;
/// The longest `Crawl-delay` that is kept.
const LONGEST_DELAY: f32 = 60.0;

/// The rules of each site, by its origin; `None` if they cannot be read for now.
pub(super) type Robots = HashMap<String, Option<Rules>>;

/// What a site lets us read.
pub(super) enum Rules {
    All,
    Nothing,
    Some(Box<Robot>),
}

impl Site<'_> {
    /// Whether `robots.txt` lets us read the URL; `None` if it cannot be read for now.
    pub(super) fn may_read(&mut self, url: &Url, robots: &mut Robots) -> Result<Option<bool>, ConnectorError> {
        let origin = url.origin().ascii_serialization();
        if !robots.contains_key(&origin) {
            let rules = self.rules(&origin)?;
            robots.insert(origin.clone(), rules);
        }
        Ok(robots.get(&origin).and_then(Option::as_ref).map(|rules| match rules {
            Rules::All => true,
            Rules::Nothing => false,
            Rules::Some(robot) => robot.allowed(url.as_str()),
        }))
    }

    /// The rules of a site, as RFC 9309 says.
    fn rules(&mut self, origin: &str) -> Result<Option<Rules>, ConnectorError> {
        let address = page(&format!("{origin}/robots.txt")).map_err(lasting)?;
        let text = match self.get(&address, &Validators::default(), MAX_ROBOTS, None)? {
            Reply::Content(content) => content.bytes,
            // Only its beginning counts.
            Reply::TooLarge(bytes) => bytes,
            Reply::Failed(_, Some(status)) if status.is_client_error() && status.as_u16() != 429 => {
                return Ok(Some(Rules::All));
            }
            Reply::Gone | Reply::Unchanged => return Ok(Some(Rules::All)),
            Reply::Failed(reason, _) => {
                tracing::warn!(%address, reason, "cannot read the rules of a site; its pages are left as they were");
                return Ok(None);
            }
            Reply::Moved(_) => return Ok(None),
        };
        // The name in the rules has no version.
        let agent = self.config.user_agent.split(['/', ' ']).next().unwrap_or_default();
        let Ok(robot) = Robot::new(agent, &text) else { return Ok(Some(Rules::Nothing)) };
        let asked = Duration::from_secs_f32(robot.delay.unwrap_or_default().clamp(0.0, LONGEST_DELAY));
        self.requests.delay = self.requests.delay.max(asked);
        Ok(Some(Rules::Some(Box::new(robot))))
    }
}
