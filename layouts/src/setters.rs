/// Declares a struct with a setter per field, which takes the value and returns the struct, so that
/// programs can build a `#[non_exhaustive]` struct of settings in one expression.
#[doc(hidden)]
#[macro_export]
macro_rules! with_setters {
    (
        $(#[$attribute:meta])*
        pub struct $struct:ident {
            $($(#[doc = $doc:literal])+ pub $field:ident: $type:ty,)+
        }
    ) => {
        $(#[$attribute])*
        #[non_exhaustive]
        pub struct $struct {
            $($(#[doc = $doc])+ pub $field: $type,)+
        }

        impl $struct {
            $($(#[doc = $doc])+
            #[must_use]
            pub fn $field(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            })+
        }
    };
}
