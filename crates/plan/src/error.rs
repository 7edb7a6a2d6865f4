//! Causes for which a problem has no plan.

/// Cause for which no plan was made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Hosts(schema::HostLayoutError),
}
