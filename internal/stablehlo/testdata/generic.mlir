#mesh = #sdy.mesh<["x"=2]>
"builtin.module"() <{sym_name = "jit_f"}> ({
  "sdy.mesh"() <{mesh = #mesh, sym_name = "mesh"}> : () -> ()
  "func.func"() <{arg_attrs = [{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, {}], function_type = (tensor<4x3xf32>, tensor<4xi1>) -> (tensor<2x3xf32>, tensor<3xi32>), res_attrs = [{}, {}], sym_name = "main", sym_visibility = "public"}> ({
  ^bb0(%arg0: tensor<4x3xf32>, %arg1: tensor<4xi1>):
    %0 = "stablehlo.constant"() <{value = dense<[[1.0, 2.0, 3.0]]> : tensor<1x3xf32>}> : () -> tensor<1x3xf32>
    %1 = "stablehlo.broadcast_in_dim"(%0) <{broadcast_dimensions = array<i64: 0, 1>}> : (tensor<1x3xf32>) -> tensor<4x3xf32>
    %2 = "stablehlo.compare"(%arg0, %1) <{comparison_direction = #stablehlo<comparison_direction GT>, compare_type = #stablehlo<comparison_type FLOAT>}> : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xi1>
    %3 = "stablehlo.broadcast_in_dim"(%arg1) <{broadcast_dimensions = array<i64: 0>}> : (tensor<4xi1>) -> tensor<4x3xi1>
    %4 = "stablehlo.or"(%2, %3) : (tensor<4x3xi1>, tensor<4x3xi1>) -> tensor<4x3xi1>
    %5 = "stablehlo.select"(%4, %arg0, %1) : (tensor<4x3xi1>, tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
    %6 = "stablehlo.slice"(%5) <{limit_indices = array<i64: 4, 3>, start_indices = array<i64: 1, 0>, strides = array<i64: 2, 1>}> : (tensor<4x3xf32>) -> tensor<2x3xf32>
    %7 = "stablehlo.iota"() <{iota_dimension = 0 : i64}> : () -> tensor<4x3xi32>
    %8 = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %9 = "stablehlo.constant"() <{value = dense<0xFF800000> : tensor<f32>}> : () -> tensor<f32>
    %10:2 = "stablehlo.reduce"(%arg0, %7, %9, %8) <{dimensions = array<i64: 0>}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<i32>, %arg4: tensor<f32>, %arg5: tensor<i32>):
      %11 = "stablehlo.compare"(%arg2, %arg4) <{comparison_direction = #stablehlo<comparison_direction GT>}> : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %12 = "stablehlo.compare"(%arg2, %arg2) <{comparison_direction = #stablehlo<comparison_direction NE>}> : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %13 = "stablehlo.or"(%11, %12) : (tensor<i1>, tensor<i1>) -> tensor<i1>
      %14 = "stablehlo.compare"(%arg2, %arg4) <{comparison_direction = #stablehlo<comparison_direction EQ>}> : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %15 = "stablehlo.compare"(%arg3, %arg5) <{comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %16 = "stablehlo.and"(%14, %15) : (tensor<i1>, tensor<i1>) -> tensor<i1>
      %17 = "stablehlo.or"(%13, %16) : (tensor<i1>, tensor<i1>) -> tensor<i1>
      %18 = "stablehlo.select"(%13, %arg2, %arg4) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
      %19 = "stablehlo.select"(%17, %arg3, %arg5) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
      "stablehlo.return"(%18, %19) : (tensor<f32>, tensor<i32>) -> ()
    }) : (tensor<4x3xf32>, tensor<4x3xi32>, tensor<f32>, tensor<i32>) -> (tensor<3xf32>, tensor<3xi32>)
    "func.return"(%6, %10#1) : (tensor<2x3xf32>, tensor<3xi32>) -> ()
  }) : () -> ()
}) : () -> ()
