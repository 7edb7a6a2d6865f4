//! A macro that defines an error enum with a hint for each variant. `thiserror` has attributes only
//! for messages.

/// Defines an enum of errors as `thiserror` does, and a method `hint` that says what the user can
/// do about each of them.
///
/// - `#[error(…)]` is the message, as in `thiserror`.
/// - `#[hint("…", …)]` is a hint with the arguments of `format!`, in which the fields of the
///   variant are variables.
/// - `#[hint(expression)]` is an `Option<String>`, for variants that have a hint only in some
///   cases.
/// - A variant without `#[hint]` has no hint.
macro_rules! errors_with_hints {
    (
        $(#[doc = $about:literal])*
        pub enum $name:ident {
            $(
                $(#[doc = $doc:literal])*
                #[error($($message:tt)*)]
                $(#[hint($($hint:tt)*)])?
                $variant:ident
                $({ $($field:ident: $field_type:ty),* $(,)? })?
            ),* $(,)?
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, thiserror::Error)]
        pub enum $name {
            $(
                $(#[doc = $doc])*
                #[error($($message)*)]
                $variant $({ $($field: $field_type),* })?
            ),*
        }

        impl $name {
            /// Returns advice to the user about the error.
            pub fn hint(&self) -> Option<String> {
                match self {
                    $(Self::$variant $({ $($field),* })? => {
                        // Most hints use only some of the fields, so the others would be reported
                        // as unused.
                        $($(_ = $field;)*)?
                        errors_with_hints!(@hint $($($hint)*)?)
                    })*
                }
            }
        }
    };
    (@hint) => { None };
    (@hint $text:literal $($arguments:tt)*) => { Some(format!($text $($arguments)*)) };
    (@hint $optional:expr) => { $optional };
}

pub(super) use errors_with_hints;
