//! A macro that defines an error with its hint beside each variant. `thiserror` has attributes for
//! messages only.

/// Defines an enum of errors as `thiserror` does, and a method `hint` that says what the user can
/// do about each of them.
///
/// - `#[error(…)]` is the message, as for `thiserror`.
/// - `#[hint("…", …)]` is a hint with the arguments of `format!`, in which the fields of the variant
///   are variables.
/// - `#[hint(expression)]` is an `Option<String>`, for variants that only sometimes have a hint.
/// - A variant without `#[hint]` has none.
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
            /// What the user can do about the error.
            pub fn hint(&self) -> Option<String> {
                match self {
                    $(Self::$variant $({ $($field),* })? => {
                        // Most hints use only some of the fields.
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
