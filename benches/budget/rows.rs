//! Operations and their benches, one row each.

/// Defines each operation as an exported function, and its benches in both shapes.
///
/// A row has the name of the bench, the exported name, the parameters and the body of the
/// operation; then the constructor of the state of the bench and the check after it, and the loop,
/// in which `post` is the operation. In the group `held` that is the exported function, about whose
/// arguments the compiler has no information. In the group `inlined` it is the body.
///
/// `also` names benches that another module defines in its modules `held` and `inlined`.
macro_rules! operations {
    (
        $level:expr;
        $([also $module:ident: $($other:ident),*];)?
        $($bench:ident: $exported:ident($($parameter:ident: $type:ty),* $(,)?) -> $result:ty $body:block
        with [$($make:tt)*] until [$($check:tt)*]
        |$post:ident, $state:ident: $State:ty $(, $extra:ident: $Extra:ty)?| $run:block)*
    ) => {
        mod body {
            use super::*;

            $(#[inline(always)]
            pub(super) fn $bench($($parameter: $type),*) -> $result $body)*
        }

        $(#[unsafe(no_mangle)]
        #[inline(never)]
        fn $exported($($parameter: $type),*) -> $result {
            body::$bench($($parameter),*)
        })*

        mod calls {
            use super::*;
            $(use crate::$module::held::{$($other),*};)?

            $(#[library_benchmark(config = crate::gate::gate($level, crate::budget::Shape::Held, stringify!($bench)))]
            #[bench::run(args = ($($make)*), teardown = $($check)*)]
            fn $bench($state: &'static mut $State $(, $extra: $Extra)?) -> &'static mut $State {
                use super::$exported as $post;
                $run;
                $state
            })*

            library_benchmark_group!(name = held; benchmarks = $($bench),* $(, $($other),*)?);
        }

        mod loops {
            use super::*;
            $(use crate::$module::inlined::{$($other),*};)?

            $(#[library_benchmark(config = crate::gate::gate($level, crate::budget::Shape::Inlined, stringify!($bench)))]
            #[bench::run(args = ($($make)*), teardown = $($check)*)]
            fn $bench($state: &'static mut $State $(, $extra: $Extra)?) -> &'static mut $State {
                use super::body::$bench as $post;
                $run;
                $state
            })*

            library_benchmark_group!(name = inlined; benchmarks = $($bench),* $(, $($other),*)?);
        }

        pub(crate) use calls::held;
        pub(crate) use loops::inlined;
    };
}

pub(crate) use operations;
