//! Enums whose values have a name in configuration, API and records.

/// Declares an enum without fields, with `ALL` and `as_str`. The documentation of each variant ends with its name.
macro_rules! named_enum {
    (
        $(#[$meta:meta])*
        pub enum $type:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $(
                $(#[$variant_meta])*
                #[doc = concat!("\n\nNamed `", $name, "`.")]
                $variant,
            )+
        }

        impl $type {
            /// All values.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name in configuration and API.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}
